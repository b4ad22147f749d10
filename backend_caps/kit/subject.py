"""The backend under test, and its claims."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.declaration import Declaration, declared
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import BY_HAND, Source
from backend_caps.kit.errors import KitError
from backend_caps.resolution.uses import Use
from backend_caps.runtime.attention import AttentionBackend, BackendSite
from backend_caps.simulator import Site
from backend_caps.startup.configuration import load_implementation

if TYPE_CHECKING:
    from backend_caps.kit.scenarios import Scenario

_Kind = TypeVar("_Kind")
_TOLERANCES: Mapping[str, float] = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""By dtype: two rounding steps at sums of a few hundred; float32 has a kernel's usual error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A backend under test.

    Args:
        name: the backend's name in flags.
        declaration: its declaration; not of a composite, whose parts are checked separately.
        source: the file and distribution of the declaration.
        builder: builds a backend whose class is an engine's, by an adapter; None: this runtime's.
        words: arguments of `backend-caps check` beside its name that select it.
        stand_ins: what is run in place of functions that need a GPU or its compiler.
        without: names of forwards to leave out, because the backend is known to fail them.
        takes: tells which models an adapter can make, by the layers and sizes of a scenario.
    """

    name: str
    declaration: Declaration
    source: Source = BY_HAND
    builder: Callable[[BackendSite], AttentionBackend] | None = None
    words: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    takes: Callable[[Scenario], bool] = lambda _scenario: True

    @classmethod
    def of(cls, backend: Backend) -> Subject:
        """Make the subject of a discovered backend.

        Raises:
            KitError: its declaration was not read, or it is a composite.
        """
        if backend.status is not Status.OK or backend.declaration is None:
            problems = "; ".join(each.message for each in backend.problems)
            raise KitError.uncheckable(backend.name, problems or backend.status.value)
        if backend.declaration.parts:
            parts = ", ".join(sorted({part.backend for part in backend.declaration.parts}))
            raise KitError.uncheckable(backend.name, f"it is a composite: check its parts, {parts}")
        return cls(name=backend.name, declaration=backend.declaration, source=backend.source)

    def build(self, site: BackendSite) -> AttentionBackend:
        """Build the backend from pools.

        Raises:
            ImplementationError: the declaration names no implementation that can be imported.
            Exception: any that its constructor raises.
        """
        return cast("AttentionBackend", (self.builder or self.load())(site))

    def load(self) -> Callable[..., object]:
        """Import its implementation: a class, or a function that builds a backend.

        Raises:
            ImplementationError: the declaration names no implementation that can be imported.
        """
        use = Use(
            backend=self.name,
            role=Role.TARGET,
            phase=Phase.DECODE,
            declaration=self.declaration,
            source=self.source,
        )
        return load_implementation(use)

    def claim(self, capability: str, **facts: object) -> object:
        """Return its value of a capability; `facts` decide the declared conditions.

        Unless `facts` name another `role` and `phase`, it is that of the target's decode.
        """
        situation = {"role": Role.TARGET, "phase": Phase.DECODE, **facts}
        return declared(self.declaration, capability, situation)[0]

    def claim_as(self, kind: type[_Kind], capability: str, **facts: object) -> _Kind:
        """Return a claim as `claim` does, as a value of one type."""
        value = self.claim(capability, **facts)
        assert isinstance(value, kind), f"{capability} is a {kind.__name__}"
        return value

    def tolerance(self, dtype: str) -> float:
        """Return the absolute and relative tolerance of an output in a dtype."""
        return self.declaration.tolerances.get(dtype, _TOLERANCES[dtype])

    @property
    def root(self) -> Path:
        """The folder, or the one file, that holds the implementation's code."""
        self.load()
        module = (self.declaration.implementation or "").partition(":")[0]
        # A namespace package has no file of its own.
        file = sys.modules[module.partition(".")[0]].__file__ or sys.modules[module].__file__
        assert file is not None, "what was imported from source has a file"
        path = Path(file)
        return path.parent if path.name == "__init__.py" else path

    def line_in(self, traceback: TracebackType | None) -> Site | None:
        """Find the innermost line of `traceback` in the backend's files; None: there is none."""
        return self._first_line([*walk_tb(traceback)][::-1])

    def running_line(self) -> Site | None:
        """Find the innermost running line in the backend's files; None where there is none."""
        return self._first_line(walk_stack(sys._getframe()))  # noqa: SLF001 - the public `inspect.currentframe` may be None

    def _first_line(self, frames: Iterable[tuple[FrameType, int]]) -> Site | None:
        sites = (Site(frame.f_code.co_filename, line) for frame, line in frames)
        return next((site for site in sites if self.owns(site.file)), None)

    def owns(self, file: str) -> bool:
        """Return whether a file belongs to the backend's code."""
        return Path(file).is_relative_to(self.root)
