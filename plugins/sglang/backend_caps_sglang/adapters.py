"""The installed backends that declare an adapter for SGLang, as its registry takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Literal, Protocol, runtime_checkable

from backend_caps import BackendCapsError, Declaration, Role
from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import declared
from backend_caps_sglang.errors import AdapterError

ENGINE: Literal["sglang"] = "sglang"
_BASE = "sglang.srt.layers.attention.base_attn_backend:AttentionBackend"


@runtime_checkable
class DraftAdapter(Protocol):
    """An adapter that makes the backends of a draft too, as `bridge`'s do."""

    def draft_steps(self, runner: object, topk: int, num_steps: int) -> object:
        """Build what SGLang calls a multi-step draft backend: a container of `attn_backends`."""


@runtime_checkable
class DeclaredAdapter(Protocol):
    """An adapter that resolves a declaration, as `bridge`'s do."""

    def with_declaration(self, declaration: Declaration, /) -> object:
        """Return the adapter with another declaration in the place of its own."""


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
    is_drafting: bool
    """Whether it declares the roles of a draft, on any server."""
    declaration: Declaration
    """As the registry has it: without the claims that lack evidence, where that is required."""

    def __str__(self) -> str:
        return f"{self.place} ({self.owner})"

    def __call__(self, runner: object) -> object:
        """Build the backend from SGLang's model runner.

        Raises:
            AdapterError: the adapter cannot be imported, raises, or returns something else.
            BackendCapsError: what the adapter itself refuses, with its reasons.
        """
        with self._faults():
            make = self._maker()
            assert callable(make), f"{self.place} is no function"
            made: object = make(runner)
            base: type = resolve_name(_BASE)
        if not isinstance(made, base):
            raise self._fault(f"it returned an object of type {type(made).__name__}")
        return made

    def draft_steps(self, runner: object, topk: int, num_steps: int) -> object:
        """Build the container of a draft's steps from SGLang's model runner of the draft.

        Raises:
            AdapterError: the adapter cannot be imported, raises, or makes no such container.
            BackendCapsError: what the adapter itself refuses, with its reasons.
        """
        with self._faults():
            maker = self._maker()
            if isinstance(maker, DraftAdapter):
                return maker.draft_steps(runner, topk, num_steps)
        raise self._fault("it has no draft_steps(runner, topk, num_steps), and drafts are run")

    def _maker(self) -> object:
        """Import what the declaration names, with the declaration that the registry has."""
        maker: object = resolve_name(self.place)
        if isinstance(maker, DeclaredAdapter):
            return maker.with_declaration(self.declaration)
        return maker

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Wrap what an adapter raises in an `AdapterError`."""
        try:
            yield
        except BackendCapsError:
            raise
        except Exception as error:  # a plugin raises what it likes
            raise self._fault(f"it raised {type(error).__name__}: {error}") from error

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
                is_drafting=_is_drafting(declaration),
                declaration=declaration,
            )


def _is_deterministic(declaration: Declaration) -> bool:
    """Tell whether a backend declares the same bits each time, and in every batch.

    Nothing is known of the server yet: what a condition may take away, or a part, does not count.
    """
    return not declaration.parts and all(
        declared(declaration, name, {})[0] is True for name in ("deterministic", "batch_invariant")
    )


def _is_drafting(declaration: Declaration) -> bool:
    """Tell whether a backend declares to run drafts; what its parts declare is asked later."""
    roles = declared(declaration, "roles", {})[0]
    return isinstance(roles, frozenset) and Role.DRAFT in roles
