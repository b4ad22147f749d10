"""What differs between a server and the file that the setting `lock` names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from backend_caps.discovery.registry import Registry
from backend_caps.report.diff import Side, differences
from backend_caps.report.difference import DifferenceDocument
from backend_caps.report.launch_differences import of_launches
from backend_caps.report.launches import LaunchDocument
from backend_caps.report.lock import LockDocument, LockedBackend, read_lock


def lock_differences(path: Path, launch: LaunchDocument, registry: Registry) -> Iterator[str]:
    """Compare a server with what `backend-caps lock` wrote; a sentence for all that differs.

    What the engine takes is compared, and what plugins declare. Of the engine's own classes a lock
    has the source's words, which is not read here.

    Args:
        path: the file.
        launch: what the server ended with.
        registry: what is installed.

    Raises:
        LockError: the file cannot be read, or is no lock.
    """
    locked = read_lock(path)
    found = [*_of_engine(locked, launch), *map(_words, _of_plugins(locked, registry))]
    if found:
        yield (
            f"The server is not as {str(path)!r} says: {'; '.join(found)}. Start what was locked, "
            "or lock it anew."
        )


def _of_engine(locked: LockDocument, launch: LaunchDocument) -> Iterator[str]:
    before = None if locked.plan is None else locked.plan.launch
    if before is None:
        return
    if before.engine != launch.engine:
        yield f"the engine is {launch.engine} and was {before.engine}"
    yield from map(_words, of_launches(before, launch))


def _of_plugins(locked: LockDocument, registry: Registry) -> Iterable[DifferenceDocument]:
    now = (LockedBackend.of(own) for own in registry.entries)
    return differences(_plugins(locked.backends), _plugins(now))


def _plugins(backends: Iterable[LockedBackend]) -> Side:
    own = tuple(each for each in backends if each.engine_class is None)
    return Side(engine=None, backends=own, problems=(), rules=None)


def _words(difference: DifferenceDocument) -> str:
    what = " ".join(part for part in (difference.subject, difference.field) if part)
    return f"{what} is {difference.after or 'not there'} and was {difference.before or 'not there'}"
