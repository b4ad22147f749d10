"""Errors of what is installed: plugins, new ones, and locks."""

from __future__ import annotations

from backend_caps.cli.plugin_errors import PluginFolderError, PluginNameError
from backend_caps.discovery.errors import (
    DeadlineError,
    RepeatedBackendError,
    StringInsteadOfListError,
)
from backend_caps.discovery.handed_down import RegistrationsDifferError
from backend_caps.report.difference import Difference as LockDifference
from backend_caps.report.difference import DifferenceKind
from backend_caps.report.errors import LockFileError, LockSchemaError, LockWriteError
from backend_caps.startup.locked import LockDiffersError
from docs.tools.error_examples.occasion import Occasion

DISCOVERY = Occasion(
    title="Discovery",
    told="Raised by `discover` and `Registry.of` for what a caller gives them; the last one by "
    "`configure`, in a worker process.",
    examples=(
        StringInsteadOfListError(argument="path", value="plugins"),
        DeadlineError(deadline_s=0),
        RepeatedBackendError(name="my_flash", sources=("my-flash 0.1.0", "by hand")),
        RegistrationsDifferError(
            parent_pid=4711,
            differences=("backend my_flash is my-flash 0.1.0 (ok) there, and nothing here",),
        ),
    ),
)
NEW_PLUGINS = Occasion(
    title="New plugins",
    told="Raised by `backend-caps new-plugin`.",
    examples=(
        PluginNameError(
            name="my-flash",
            problem="it is to name a Python package too",
            expected="up to 30 letters and digits in lower case, with '_' between words",
            meant="my_flash",
        ),
        PluginFolderError(folder="my_flash", problem="it holds README.md and 4 more"),
    ),
)
LOCKS = Occasion(
    title="Locks",
    told="Raised where `backend-caps lock` writes a file, where `verify` and `diff` read one, and "
    "by `configure(lock=...)`.",
    examples=(
        LockFileError(path="backends.lock.json", cause="No such file or directory"),
        LockSchemaError(path="backends.lock.json", schema="'backend-caps/lock@2'"),
        LockWriteError(path="backends.lock.json", cause="No space left on device"),
        LockDiffersError(
            path="backends.lock.json",
            differences=(
                LockDifference(
                    kind=DifferenceKind.STRICTER,
                    subject="plan",
                    field="host_seq_lens",
                    before="none",
                    after="exact",
                ),
            ),
        ),
    ),
)
