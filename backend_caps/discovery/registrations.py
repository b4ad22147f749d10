"""What a process registered, passed to its workers, which have to find the same.

A server starts workers as processes of `multiprocessing`, and each discovers anew. What stands in
the environment counts for the children of the process that wrote it alone: a server that is
started from within another is another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from multiprocessing import parent_process

from pydantic import TypeAdapter, ValidationError

from backend_caps.discovery.problems import DiscoveryError

VARIABLE = "BACKEND_CAPS_REGISTERED"
"""The environment variable that holds what was registered, by process and registrar."""
_NOTHING = "nothing"
_Told = dict[str, dict[str, dict[str, str]]]
_TOLD = TypeAdapter(_Told)


def check_against_parent(
    registrar: str, entries: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    """Compare with what the process registered that started this one.

    Args:
        registrar: the name of what registers; each is compared with its own.
        entries: what is registered here, by what it is.
        environ: this process's.

    Raises:
        DiscoveryError: `registrations-differ`: an entry is another, or is on one side alone.
    """
    parent = parent_process()
    if parent is None or parent.pid is None:
        return
    theirs = _told(environ).get(f"{parent.pid}", {}).get(registrar)
    if theirs is None:
        return
    differences = [
        f"{name} is {theirs.get(name, _NOTHING)} there, and {entries.get(name, _NOTHING)} here"
        for name in sorted(theirs.keys() | entries.keys())
        if theirs.get(name) != entries.get(name)
    ]
    if differences:
        raise DiscoveryError(
            "registrations-differ",
            f"this process and the one that started it, {parent.pid}, registered different "
            f"things: {'; '.join(differences)}. They were expected to be the same: start the "
            "server from one environment, and change nothing installed while it starts.",
        )


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
    """Read the variable, by process and registrar; anything else in it counts as nothing."""
    try:
        return _TOLD.validate_json(environ.get(VARIABLE, "{}"))
    except ValidationError:
        return {}
