"""What an engine makes of a command line as sections: whether it starts, its layers and changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from backend_caps.report import launches, words
from backend_caps.report.launches import EngineLayersDocument, LaunchDocument
from backend_caps.report.sections import (
    Columns,
    Heading,
    Lines,
    Section,
    some_lines,
    table_of,
    titled_table,
)

_VERBS = {True: "starts", False: "refuses", None: "may refuse"}


def launch_view(launch: LaunchDocument) -> Iterator[Section]:
    """Show whether the engine starts, its layers, and what it changes of what decides a plan."""
    yield Lines(tuple(start_lines(launch)))
    yield from _taken_view(launch)
    if launch.layers:
        yield Lines(tuple(_server_lines(launch.flags)))
    decisive = {*launch.flags, "cuda_graph_config"}
    yield from _rewrites_view(
        each for each in launch.rewrites if launch.layers or each.name in decisive
    )


def layers_view(found: EngineLayersDocument) -> Iterator[Section]:
    """Show what each kind of layer takes, the mode of graphs, and why no other backend."""
    headline, *because = start_lines(found)
    yield Heading(headline)
    if because:
        yield Lines(tuple(because))
    yield from _taken_view(found)
    for choice in found.choices:
        yield from _choice_view(choice)
    yield from _rewrites_view(found.rewrites)


def start_lines(found: LaunchDocument | EngineLayersDocument) -> Iterator[str]:
    """Write whether the engine starts, and why not."""
    said = [found.refusal] if found.refusal is not None else found.unchecked
    yield f"{found.engine} {_VERBS[found.starts]} {found.model} on {found.machine}"
    yield from (f"because {each.at}: {each.message}" for each in said)


def _server_lines(flags: Mapping[str, JsonValue]) -> Iterator[str]:
    """Write how steps are scheduled, where an engine's own values name it in words of its own."""
    overlap = flags.get("disable_overlap_schedule")
    words_of = {True: "off", False: "on", None: "not known"}
    yield f"async scheduling: {words_of[overlap if isinstance(overlap, bool) else None]}"
    algorithm, steps = flags.get("speculative_algorithm"), flags.get("speculative_num_steps")
    yield "no speculation" if algorithm is None else f"speculation: {algorithm}, {steps} tokens"
    if flags.get("enable_two_batch_overlap") is True:
        yield "dual batch overlap: on"


def _taken_view(found: LaunchDocument | EngineLayersDocument) -> Iterator[Section]:
    if found.layers:
        yield table_of(_merged(found.layers), _LAYERS)
        yield from some_lines(_special_lines(found.layers))
    yield from _caches_view(found.caches or ())
    if found.graphs is not None:
        yield Lines(tuple(_graph_lines(found.graphs)))


def _merged(layers: Iterable[launches.LayerGroupDocument]) -> list[launches.LayerGroupDocument]:
    """Join the groups that differ in nothing but what they ask, which has lines of its own."""
    found: dict[str, launches.LayerGroupDocument] = {}
    for each in layers:
        key = each.model_dump_json(exclude={"facts", "num_layers"})
        own = found.get(key)
        number = each.num_layers + (0 if own is None else own.num_layers)
        found[key] = each.model_copy(update={"num_layers": number})
    return list(found.values())


def _caches_view(caches: Sequence[launches.CacheGroupDocument]) -> Iterator[Section]:
    """Show the groups that share blocks, where they are not just the kinds of layers."""
    kinds = {(each.cache, each.block_size) for each in caches}
    is_special = (
        len(each.backends) > 1 or each.block_size != each.kernel_block_size for each in caches
    )
    if len(caches) == len(kinds) and not any(is_special):
        return
    alike = Counter(
        (
            str(each.num_layers),
            each.cache,
            str(each.block_size),
            str(each.kernel_block_size),
            ", ".join(each.backends),
        )
        for each in caches
    )
    rows = [(str(number), *row) for row, number in alike.items()]
    columns = ("groups", "layers of each", "cache", "block", "in kernels", "backends")
    yield from titled_table("Layers that share blocks of the KV cache", columns, rows)


def _rewrites_view(rewrites: Iterable[launches.RewriteDocument]) -> Iterator[Section]:
    rows = [
        (each.name, words.plain_words(each.before), words.plain_words(each.after), each.at)
        for each in rewrites
        if not isinstance(each.after, list)
    ]
    yield from titled_table("What the engine changes", ("argument", "from", "to", "at"), rows)


_LAYERS: Columns[launches.LayerGroupDocument] = {
    "layers": lambda each: f"{each.num_layers} {each.layer}",
    "of": lambda each: each.role,
    "backend": lambda each: each.backend,
    "graphs": lambda each: each.graph_support or "",
    "cache": lambda each: each.cache or "none",
    "block": lambda each: str(each.sizes.get("block_size") or ""),
    "head": lambda each: str(each.sizes.get("head_size") or ""),
    "window": lambda each: str(each.sizes.get("sliding_window") or ""),
}


def _special_lines(layers: Iterable[launches.LayerGroupDocument]) -> Iterator[str]:
    """Write what layers ask of their backend that most do not."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in layers:
        counts[each.layer, each.role, each.special] += each.num_layers
    for (layer, role, special), number in counts.items():
        if special:
            yield f"{number} {layer} layers of the {role} ask {special}"


def _graph_lines(graphs: launches.LayerGraphsDocument) -> Iterator[str]:
    changed = "" if graphs.asked == graphs.mode else f", and not {graphs.asked}"
    yield f"graphs: {graphs.mode}{changed}"
    if graphs.by is not None:
        yield f"the least is {graphs.support}, of {graphs.by}"
    yield from (f"because {each}" for each in graphs.words)


def _choice_view(choice: launches.LayerChoiceDocument) -> Iterator[Section]:
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
