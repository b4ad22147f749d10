"""The installed backends that declare an adapter for SGLang, as its registry takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Literal

from backend_caps import BackendCapsError, Declaration
from backend_caps.capability.backend import Backend
from backend_caps.resolution.contributions import declared
from backend_caps_sglang.errors import AdapterError

ENGINE: Literal["sglang"] = "sglang"
_BASE = "sglang.srt.layers.attention.base_attn_backend:AttentionBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Makes one of our backends for SGLang. What it names is imported when it is called."""

    backend: str
    owner: str
    """The distribution and its version."""
    place: str
    """`"package.module:Name"`, as the declaration has it."""
    is_deterministic: bool
    """Whether the backend declares what deterministic inference asks for, on every server."""

    def __str__(self) -> str:
        return f"{self.place} ({self.owner})"

    def __call__(self, runner: object) -> object:
        """Build the backend from SGLang's model runner.

        Raises:
            AdapterError: the adapter cannot be imported, raises, or returns something else.
            BackendCapsError: what the adapter itself refuses, with its reasons.
        """
        try:
            make: Callable[[object], object] = resolve_name(self.place)
            made = make(runner)
            base: type = resolve_name(_BASE)
        except BackendCapsError:
            raise
        except Exception as error:  # a plugin raises what it likes
            raise self._fault(f"it raised {type(error).__name__}: {error}") from error
        if not isinstance(made, base):
            raise self._fault(f"it returned an object of type {type(made).__name__}")
        return made

    def _fault(self, problem: str) -> AdapterError:
        return AdapterError(
            backend=self.backend, owner=self.owner, adapter=self.place, problem=problem
        )


def adapters_of(backends: Iterable[Backend]) -> Iterator[Adapter]:
    """List the adapters for SGLang, of what was read."""
    for backend in backends:
        declaration = backend.declaration
        if declaration is not None and ENGINE in declaration.adapters:
            source = backend.source
            yield Adapter(
                backend=backend.name,
                owner=f"{source.distribution} {source.version}",
                place=declaration.adapters[ENGINE],
                is_deterministic=_is_deterministic(declaration),
            )


def _is_deterministic(declaration: Declaration) -> bool:
    """Tell whether a backend declares the same bits each time, and in every batch.

    Nothing is known of the server yet: what a condition may take away, or a part, does not count.
    """
    return not declaration.parts and all(
        declared(declaration, name, {})[0] is True for name in ("deterministic", "batch_invariant")
    )
