"""Errors of what is installed: plugins and locks."""

from __future__ import annotations

from backend_caps.discovery.errors import (
    DeadlineError,
    RepeatedBackendError,
    StringInsteadOfListError,
)
from backend_caps.discovery.handed_down import RegistrationsDifferError
from backend_caps.report.difference import NOWHERE, DifferenceDocument, DifferenceKind
from backend_caps.report.lock import LockError
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
LOCKS = Occasion(
    title="Locks",
    told="Raised where `backend-caps lock` writes a file, where `verify` and `diff` read one, and "
    "by `configure(lock=...)`.",
    coded=(LockError,),
    examples=(
        LockDiffersError(
            path="backends.lock.json",
            differences=(
                DifferenceDocument(
                    kind=DifferenceKind.STRICTER,
                    subject="plan",
                    field="host_seq_lens",
                    before="none",
                    after="exact",
                    where=NOWHERE,
                ),
            ),
        ),
    ),
)
