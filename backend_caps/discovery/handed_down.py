"""What a process registered, handed down to those that it starts, which have to find the same.

A server starts workers as processes of `multiprocessing`, and each discovers anew. What stands in
the environment counts for the children of the process that wrote it, and for nobody else: a server
that is started from within another is another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from multiprocessing import parent_process

from pydantic import TypeAdapter, ValidationError

from backend_caps.errors import BackendCapsError

VARIABLE = "BACKEND_CAPS_REGISTERED"
"""The environment variable that holds what was registered, by who registered it."""
_NOTHING = "nothing"
_Told = dict[str, dict[str, dict[str, str]]]
_TOLD = TypeAdapter(_Told)


@dataclass(eq=False, kw_only=True)
class RegistrationsDifferError(BackendCapsError):
    """A worker registered something else than the process that started it."""

    parent_pid: int
    differences: tuple[str, ...]
    """One for each entry that differs, sorted."""

    @property
    def message(self) -> str:
        """Each entry, and what to do."""
        return (
            f"this process and the one that started it, {self.parent_pid}, registered different "
            f"things: {'; '.join(self.differences)}. They were expected to be the same: start the "
            f"server from one environment, and change nothing installed while it starts."
        )


def check_against_parent(
    registrar: str, entries: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    """Compare with what the process registered that started this one.

    Args:
        registrar: who registers: each is compared with its own.
        entries: what is registered here, by what it is.
        environ: this process's.

    Raises:
        RegistrationsDifferError: an entry is another, or is on one side alone.
    """
    parent = parent_process()
    if parent is None or parent.pid is None:
        return
    theirs = _told(environ).get(f"{parent.pid}", {}).get(registrar)
    if theirs is None:
        return
    differences = tuple(
        f"{name} is {theirs.get(name, _NOTHING)} there, and {entries.get(name, _NOTHING)} here"
        for name in sorted(theirs.keys() | entries.keys())
        if theirs.get(name) != entries.get(name)
    )
    if differences:
        raise RegistrationsDifferError(parent_pid=parent.pid, differences=differences)


def tell_children(
    registrar: str, entries: Mapping[str, str], environ: MutableMapping[str, str]
) -> None:
    """Write down what is registered here, for the processes that this one starts."""
    told = _told(environ)
    parent = parent_process()
    kept = {f"{os.getpid()}"} if parent is None else {f"{os.getpid()}", f"{parent.pid}"}
    known = {pid: own for pid, own in told.items() if pid in kept}
    own = {**known.get(f"{os.getpid()}", {}), registrar: dict(sorted(entries.items()))}
    environ[VARIABLE] = json.dumps({**known, f"{os.getpid()}": own}, sort_keys=True)


def _told(environ: Mapping[str, str]) -> _Told:
    """Read what somebody wrote, by process and registrar; what is no document counts as nothing."""
    try:
        return _TOLD.validate_json(environ.get(VARIABLE, "{}"))
    except ValidationError:
        return {}
