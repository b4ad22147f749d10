"""What an engine makes of a command line: whether it starts, what it changes, and the backends.

An engine chooses backends by role and phase, or by layer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from backend_caps.capability.vocabulary import AttentionArch, AttentionType
from backend_caps.report.document import LEFT_OUT, Document


class RewriteDocument(Document):
    """An argument to which the engine gives another value."""

    name: str
    """By the engine's own name."""
    before: JsonValue
    """Its value before; null where it was not given."""
    after: JsonValue
    """Its value then; an object with the key `unknown` where that depends on what is not known."""
    at: str
    """The engine's `file:line`."""


class RefusalDocument(Document):
    """Why the engine does not start."""

    message: str
    """The engine's own words."""
    at: str
    """The engine's `file:line`."""


class UncheckedDocument(Document):
    """A place at which the engine may refuse, for want of something that is not known."""

    message: str
    """The engine's own words there."""
    at: str
    """The engine's `file:line`."""
    unless: str
    """The condition that is not known, in the engine's own words."""


class LayerGroupDocument(Document):
    """Layers that are alike."""

    role: str
    """`target` or `draft`."""
    layer: str
    """The layers' class."""
    num_layers: int
    """How many there are."""
    backend: str
    """The name of the backend that they take."""
    path: str
    """Its class, with the module."""
    graph_support: str | None
    """For which batches its graphs work, in the engine's word; null without a cache."""
    cache: str | None
    """The class of their part of the KV cache; null where they keep nothing."""
    sizes: dict[str, JsonValue]
    """What is known of that part: block and head size, dtype, window."""
    facts: Annotated[
        dict[str, JsonValue] | None, BeforeValidator(lambda own: own or None), LEFT_OUT
    ] = None
    """What they ask of their backend, by the names of facts; left out where that is not known."""

    @property
    def special(self) -> str:
        """What they ask that most layers do not, but for the window, which is a size."""
        facts = self.facts or {}
        named = {"attention_arch": AttentionArch.MHA, "attention_type": AttentionType.DECODER}
        kinds = [str(facts[n]) for n, own in named.items() if facts.get(n, own.value) != own.value]
        switched = [n for n, own in facts.items() if own is True and n != "sliding_window"]
        return ", ".join([*kinds, *switched])


class CacheGroupDocument(Document):
    """Layers that share blocks of the KV cache."""

    cache: str
    """The class of what each keeps there."""
    num_layers: int
    """How many there are."""
    block_size: int
    """The tokens of a block, as the engine hands blocks out."""
    kernel_block_size: int
    """The tokens of a block, as the kernels address it: a divisor of the former."""
    backends: list[str]
    """The names of the layers' backends."""


class LayerChoiceDocument(Document):
    """What one kind of layer asked, and what is against each backend."""

    asked: dict[str, JsonValue]
    """Head size, dtypes, window, sinks, by the engine's names."""
    against: dict[str, list[str]]
    """The engine's reasons against each backend, by its priority; none where it can be taken."""


class LayerGraphsDocument(Document):
    """The mode of graphs that results once the backends are known."""

    asked: str
    """The mode of the arguments."""
    mode: str
    """The mode that results."""
    support: str
    """The least that a backend supports, in the engine's word."""
    by: str | None
    """The class of that backend; null where each supports all."""
    words: list[str]
    """The engine's warnings where it lowers the mode."""


class LaunchDocument(Document):
    """What the engine makes of the command line, read from its source or asked."""

    engine: str
    """The engine with its version."""
    machine: str
    """The GPU that it is started on."""
    model: str
    """The model's name, or the path of its configuration."""
    starts: bool | None
    """Whether it accepts the command line; null where that is not known."""
    refusal: RefusalDocument | None
    """Why it does not start; null where it does."""
    unchecked: list[UncheckedDocument]
    """Where it may refuse, for want of something that is not known."""
    rewrites: list[RewriteDocument]
    """The values that it changes, in order."""
    flags: dict[str, JsonValue]
    """The final values of the flags that decide the plan."""
    classes: dict[str, list[str]]
    """The classes of backends that it constructs, by the runner's slot."""
    layers: Annotated[
        tuple[LayerGroupDocument, ...] | None, BeforeValidator(lambda own: own or None), LEFT_OUT
    ] = None
    """The layers with their backends; left out for an engine that chooses by role and phase."""
    caches: Annotated[
        tuple[CacheGroupDocument, ...] | None, BeforeValidator(lambda own: own or None), LEFT_OUT
    ] = None
    """The groups of those layers that share blocks of the KV cache; left out without layers."""
    graphs: Annotated[LayerGraphsDocument | None, LEFT_OUT] = None
    """The mode of graphs that their backends leave; left out where it was not resolved."""


class EngineLayersDocument(Document):
    """Which backends the layers of a server take, and with which mode of graphs."""

    schema_: Annotated[Literal["backend-caps/engine-layers@1"], Field(alias="schema")]
    engine: str
    """The engine with its version."""
    machine: str
    """The GPU that the server is started on."""
    model: str
    """The model's name, or the path of its configuration."""
    starts: bool | None
    """Whether the engine accepts the command line; null where that is not known."""
    refusal: RefusalDocument | None
    """Why it does not start; null where it does."""
    unchecked: list[UncheckedDocument]
    """What kept the answer from being whole."""
    layers: list[LayerGroupDocument]
    """The layers of the target and of the draft model."""
    caches: list[CacheGroupDocument]
    """The groups of those layers that share blocks of the KV cache."""
    graphs: LayerGraphsDocument | None
    """The mode of graphs; null where it was not resolved."""
    choices: list[LayerChoiceDocument]
    """What those layers asked the platform."""
    rewrites: list[RewriteDocument]
    """The values that the engine changes, in order."""
    values: dict[str, JsonValue]
    """The final values that matter here, by the engine's names."""
