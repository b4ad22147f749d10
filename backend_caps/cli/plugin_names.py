"""Which names a new plugin can have: a backend, a package and a distribution are to have it."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self

from backend_caps.capability.spelling import AUTO
from backend_caps.capability.status import Status
from backend_caps.cli.plugin_errors import PluginNameError
from backend_caps.discovery.metadata import named, normalised
from backend_caps.discovery.places import place_at
from backend_caps.discovery.scan import scan
from backend_caps.discovery.search import Search

LONGEST = 30
"""With more, lines of the template become longer than its own rules allow."""
TESTS = "tests"
"""The folder of a plugin's tests."""
_TEST = "test"
"""How the names begin of which pytest collects the classes, written in capitals."""

_SPELLING = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_BEFORE_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NO_LETTERS = re.compile(r"[^a-z0-9]+")


def check_plugin_name(name: str) -> None:
    """Refuse a name that no package can have, or that something installed has already.

    Nothing is imported, and no plugin's code runs.

    Raises:
        PluginNameError: with a name near it that would do, where there is one.
    """
    installed = _Installed.of_environment()
    if not _is_spelled(name):
        near = _spelled(name)
        raise PluginNameError(
            name=name,
            problem="it is to name a Python package too",
            expected=f"up to {LONGEST} letters and digits in lower case, with '_' between words",
            meant=installed.free_one(near, f"my_{near}", near[:LONGEST].rstrip("_")),
        )
    taken = installed.owner_of(name)
    if taken is not None:
        raise PluginNameError(
            name=name,
            problem=taken,
            expected="a name that nothing else has",
            meant=installed.free_one(f"my_{name}", f"{name}_attention"),
        )


@dataclass(frozen=True, slots=True)
class _Installed:
    """Who has which name in an environment."""

    backends: Mapping[str, str]
    """Who declares each backend."""
    distributions: AbstractSet[str]

    @classmethod
    def of_environment(cls) -> Self:
        search = Search.of_process()
        claims = (claim for claim in scan(search).claims if claim.is_backend)
        backends = {each.name: each.owner for each in claims if each.status is not Status.SKIPPED}
        return cls(backends, frozenset(_distributions(search)))

    def owner_of(self, name: str) -> str | None:
        """Say what has a name already; None where it is free."""
        if keyword.iskeyword(name):
            return "it is a keyword of Python"
        if name == AUTO:
            return "as a server flag it leaves the choice to the engine"
        if name == TESTS:
            return "the folder of the plugin's tests has that name"
        if name.startswith(_TEST):
            return "its class would be called Test…, and pytest would take that for tests"
        if name in self.backends:
            return f"{self.backends[name]} declares a backend of that name"
        if name in sys.stdlib_module_names:
            return "it is a module of Python's standard library"
        if normalised(name) in self.distributions:
            return f"distribution {normalised(name)!r} is installed, and would be replaced"
        modules = (name, f"{name}_caps")
        there = next((module for module in modules if find_spec(module) is not None), None)
        return None if there is None else f"module {there!r} is there to be imported already"

    def free_one(self, *names: str) -> str | None:
        """Return the first name that a plugin can have."""
        fitting = (name for name in names if _is_spelled(name) and self.owner_of(name) is None)
        return next(fitting, None)


def _distributions(search: Search) -> Iterator[str]:
    """List the installed distributions, read off the names of their metadata."""
    for root in search.searched:
        place = place_at(root)
        if place is not None:
            yield from (named(folder, root)[0] for folder in place.folders())


def _is_spelled(name: str) -> bool:
    return len(name) <= LONGEST and _SPELLING.fullmatch(name) is not None


def _spelled(name: str) -> str:
    """Spell a name as those of packages are."""
    return _NO_LETTERS.sub("_", _BEFORE_CAPITAL.sub("_", name).lower()).strip("_")
