"""What a process registered, handed to those that it starts, which have to register the same.

SGLang starts its workers as processes of `multiprocessing`, each of which loads the plugins anew.
What stands in the environment counts for the children of the process that wrote it, and for nobody
else: a server that is started from within another is another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from multiprocessing import parent_process

from backend_caps_sglang.errors import RegistrationsDifferError

VARIABLE = "BACKEND_CAPS_SGLANG_REGISTERED"
_PID, _ENTRIES = "pid", "entries"
_NOTHING = "nothing"


def check_against_parent(entries: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Compare with what the process registered that started this one.

    Args:
        entries: what is registered here, by what it is.
        environ: this process's.

    Raises:
        RegistrationsDifferError: an entry is another, or is on one side alone.
    """
    parent = parent_process()
    told = _told(environ.get(VARIABLE))
    if parent is None or parent.pid is None or told.get(_PID) != parent.pid:
        return
    theirs = told.get(_ENTRIES)
    assert isinstance(theirs, dict), f"{VARIABLE} was not written here: {environ[VARIABLE]}"
    differences = tuple(
        f"{name} is {theirs.get(name, _NOTHING)} there, and {entries.get(name, _NOTHING)} here"
        for name in sorted(theirs.keys() | entries.keys())
        if theirs.get(name) != entries.get(name)
    )
    if differences:
        raise RegistrationsDifferError(parent_pid=parent.pid, differences=differences)


def tell_children(entries: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Write down what is registered here, for the processes that this one starts."""
    written = {_PID: os.getpid(), _ENTRIES: dict(sorted(entries.items()))}
    environ[VARIABLE] = json.dumps(written)


def _told(written: str | None) -> Mapping[str, object]:
    """Read what somebody wrote; what is no document counts as nothing."""
    try:
        told: object = json.loads(written or "{}")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
