"""Which backend each layer of a server takes, where an engine chooses by layer: JSON and view."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from backend_caps.report import words
from backend_caps.report.document import Document
from backend_caps.report.plans import RefusalDocument, RewriteDocument, UncheckedDocument
from backend_caps.report.sections import Columns, Heading, Lines, Section, table_of, titled_table

_VERBS = {True: "starts", False: "refuses", None: "may refuse"}


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
    graphs: LayerGraphsDocument | None
    """The mode of graphs; null where it was not resolved."""
    choices: list[LayerChoiceDocument]
    """What those layers asked the platform."""
    rewrites: list[RewriteDocument]
    """The values that the engine changes, in order."""
    values: dict[str, JsonValue]
    """The final values that matter here, by the engine's names."""


def layers_view(found: EngineLayersDocument) -> Iterator[Section]:
    """Show what each kind of layer takes, the mode of graphs, and why no other backend."""
    yield Heading(f"{found.engine} {_VERBS[found.starts]} {found.model} on {found.machine}")
    said = [found.refusal] if found.refusal is not None else found.unchecked
    if said:
        yield Lines(tuple(f"because {each.at}: {each.message}" for each in said))
    if found.layers:
        yield table_of(found.layers, _LAYERS)
    if found.graphs is not None:
        yield Lines(tuple(_graph_lines(found.graphs)))
    for choice in found.choices:
        yield from _choice_view(choice)
    rows = [
        (each.name, words.plain_words(each.before), words.plain_words(each.after), each.at)
        for each in found.rewrites
        if not isinstance(each.after, list)
    ]
    yield from titled_table("What the engine changes", ("argument", "from", "to", "at"), rows)


_LAYERS: Columns[LayerGroupDocument] = {
    "layers": lambda each: f"{each.num_layers} {each.layer}",
    "of": lambda each: each.role,
    "backend": lambda each: each.backend,
    "graphs": lambda each: each.graph_support or "",
    "cache": lambda each: each.cache or "none",
    "block": lambda each: str(each.sizes.get("block_size") or ""),
    "head": lambda each: str(each.sizes.get("head_size") or ""),
    "window": lambda each: str(each.sizes.get("sliding_window") or ""),
}


def _graph_lines(graphs: LayerGraphsDocument) -> Iterator[str]:
    changed = "" if graphs.asked == graphs.mode else f", and not {graphs.asked}"
    yield f"graphs: {graphs.mode}{changed}"
    if graphs.by is not None:
        yield f"the least is {graphs.support}, of {graphs.by}"
    yield from (f"because {each}" for each in graphs.words)


def _choice_view(choice: LayerChoiceDocument) -> Iterator[Section]:
    """Show the backends that the platform considers for a kind of layer, the first one first."""
    rows = [
        (name, "no" if reasons else "yes", "; ".join(reasons))
        for name, reasons in choice.against.items()
    ]
    title = f"For layers with {_asked_words(choice.asked)}"
    yield from titled_table(title, ("backend", "can", "because"), rows)


def _asked_words(asked: Mapping[str, JsonValue]) -> str:
    """Name what is special of a kind of layer: sizes and dtypes, and what is switched on."""
    sized = [f"{name} {value}" for name, value in asked.items() if type(value) in {int, str}]
    switched = [name for name, value in asked.items() if value is True]
    return ", ".join([*sized, *switched])
