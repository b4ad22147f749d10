"""What an engine makes of a command line: whether its server starts, and with which values.

An engine rewrites the flags that it is given: it fills in a backend, sets a page size, switches
overlap off. A plan is of the values that it ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from backend_caps.capability.facts import Facts
from backend_caps.capability.provenance import Problem
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.resolution.errors import plan_problem
from backend_caps.resolution.flags import ServerFlags

LEVELS: Mapping[str, frozenset[BatchKind]] = {
    "NEVER": frozenset(),
    "UNIFORM_SINGLE_TOKEN_DECODE": frozenset({BatchKind.SINGLE_TOKEN_DECODE}),
    "UNIFORM_BATCH": frozenset({BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}),
    "ALWAYS": frozenset(BatchKind),
}
"""The batches whose graphs work, by vLLM's word for it."""
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL", "FULL_AND_PIECEWISE")
"""vLLM's modes of graphs, those that replay less first."""
Plain: TypeAlias = object
"""A value of an engine's argument, as JSON has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """An argument to which the engine gives another value."""

    name: str
    """By the engine's own name, such as `page_size`."""
    before: Plain
    after: Plain
    at: str
    """The engine's `file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the engine does not start."""

    message: str
    """The engine's own words."""
    at: str
    """The engine's `file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """What the engine warns of."""

    message: str
    """The engine's own words."""
    at: str
    """The engine's `file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """A place at which the engine may refuse, for want of something that is not known."""

    message: str
    """The engine's own words there."""
    at: str
    """The engine's `file:line`."""
    unless: str
    """The condition that is not known, in the engine's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers of a server's models that are alike, and the backend that they take."""

    role: str
    """`target` or `draft`."""
    layer: str
    """The layers' class."""
    num_layers: int
    backend: str
    """The backend's name."""
    path: str
    """Its class, with the module."""
    graph_support: str | None
    """For which batches its graphs work, in the engine's word; None for a layer without a cache."""
    cache: str | None
    """The class of their part of the KV cache; None where they keep nothing of a request."""
    sizes: Mapping[str, Plain]
    """What is known of that part: block and head size, dtype, window."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What they ask of their backend, by the names of `Facts`; empty where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers of a server's models that share blocks of the KV cache."""

    cache: str
    """The class of what each keeps there."""
    num_layers: int
    block_size: int
    """The tokens of a block, as the engine hands blocks out."""
    kernel_block_size: int
    """The tokens of a block, as the kernels address it: a divisor of the former."""
    backends: Sequence[str]
    """The names of the layers' backends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """What one kind of layer asks of the platform, and why it takes no other backend."""

    asked: Mapping[str, Plain]
    """The question: head size, dtypes, window, sinks, by the engine's names."""
    against: Mapping[str, Sequence[str]]
    """The reasons against each backend, in the engine's words and by its priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphMode:
    """The mode of graphs that results once the backends are known."""

    asked: str
    """The mode of the arguments."""
    mode: str
    support: str
    """The least that a backend supports, in the engine's word."""
    by: str | None
    """The class of that backend; None where each supports all."""
    words: Sequence[str]
    """The engine's warnings where it lowers the mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What becomes of a command line."""

    engine: str
    """The engine with its version."""
    machine: str
    """The GPU that it is started on."""
    model: str
    """The model's name, or the path of its configuration."""
    refusal: Refusal | None = None
    unchecked: tuple[Unchecked, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    warnings: tuple[Warned, ...] = field(default=(), compare=False)
    """What it warns of while it processes the arguments; empty where that is not read."""
    values: Mapping[str, object] = field(default_factory=dict)
    """The final values of all arguments, as JSON has them; `{"unknown": why}` is not known."""
    flags: Mapping[str, object] = field(default_factory=dict)
    """The final values of the flags that matter here, by the names of `ServerFlags`."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What is known of machine and model, by the names of `Facts`."""
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The classes of backends that are constructed, by slot, the outermost first."""
    wrappers: frozenset[str] = frozenset()
    """Those of the classes that are constructed around others."""
    joined: frozenset[str] = frozenset()
    """The slots with a pair whose need for lengths is also that of its part for prefill."""
    layers: tuple[LayerGroup, ...] = ()
    """The layers with their backends, where an engine chooses by layer."""
    caches: tuple[CacheGroup, ...] = ()
    """The groups of those layers that share blocks of the KV cache."""
    choices: tuple[LayerChoice, ...] = ()
    """What those layers asked."""
    graphs: GraphMode | None = None
    """The mode of graphs that their backends leave; None where it was not resolved."""

    @property
    def starts(self) -> bool | None:
        """Whether the engine accepts the command line; None where that is not known."""
        if self.refusal is not None:
            return False
        return None if self.unchecked else True

    def over(self, flags: ServerFlags) -> ServerFlags:
        """Return the flags with the values that the engine ends with."""
        return flags.updated(self.flags)

    def with_facts(self, facts: Facts) -> Facts:
        """Return the facts, with open ones filled by those of the launch."""
        return Facts.model_validate({**self.facts, **facts.known()})

    def problems(self) -> Iterator[Problem]:
        """List why the server does not start, or why that is not known."""
        values = {"engine": self.engine, "machine": self.machine, "model": self.model}
        if self.refusal is not None:
            own = {"message": self.refusal.message, "at": self.refusal.at}
            yield plan_problem("engine-refuses", **own, **values)
        for each in self.unchecked:
            own = {"message": each.message, "at": each.at, "unless": each.unless}
            yield plan_problem("engine-start-not-checked", **own, **values)
