"""Import the class that a backend's declaration names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from backend_caps.errors import BackendCapsError
from backend_caps.resolution.uses import Use


@dataclass(eq=False, kw_only=True)
class ImplementationError(BackendCapsError):
    """A backend's code cannot be imported or built."""

    backend: str
    implementation: str | None
    problem: str

    @property
    def message(self) -> str:
        """The backend, where its code was looked for, and what happened."""
        where = "" if self.implementation is None else f" ({self.implementation})"
        return (
            f"backend {self.backend!r}{where} cannot be built: {self.problem.removesuffix('.')}; "
            "a declaration with implementation='package.module:Class' was expected. Install what "
            "it needs, or name another backend."
        )


def load_implementation(use: Use) -> Callable[..., object]:
    """Import the class that a use's declaration names.

    Raises:
        ImplementationError: it names none, or it cannot be imported.
    """
    declaration = use.declaration
    if declaration is None:
        raise implementation_error(use, _why_unread(use))
    if declaration.implementation is None:
        raise implementation_error(use, "its declaration names no implementation")
    module, _, name = declaration.implementation.partition(":")
    try:
        implementation: object = import_module(module)
        for part in name.split("."):
            implementation = getattr(implementation, part)
    except Exception as error:  # a plugin raises what it likes
        raise implementation_error(use, str(error)) from error
    return cast("Callable[..., object]", implementation)


def implementation_error(use: Use, problem: str) -> ImplementationError:
    """Return the error of a use whose code cannot be imported or built."""
    implementation = None if use.declaration is None else use.declaration.implementation
    return ImplementationError(backend=use.backend, implementation=implementation, problem=problem)


def _why_unread(use: Use) -> str:
    if use.problem is None:
        return "its declaration was not read"
    return use.problem.message.removesuffix(".")
