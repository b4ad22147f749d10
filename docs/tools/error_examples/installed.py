"""Errors of what is installed: plugins and locks."""

from __future__ import annotations

from backend_caps.discovery.problems import DiscoveryError
from backend_caps.report.lock import LockError
from docs.tools.error_examples.occasion import Occasion

DISCOVERY = Occasion(
    title="Discovery",
    told="Raised by `discover` and `Registry.of` for what a caller gives them; the last one by "
    "`configure`, in a worker process.",
    coded=(DiscoveryError,),
)
LOCKS = Occasion(
    title="Locks",
    told="Raised where `backend-caps lock` writes a file, where `verify` and `diff` read one, and "
    "by `configure(lock=...)`.",
    coded=(LockError,),
)
