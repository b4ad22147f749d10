"""The sizes on a server's command line, which decide nothing about backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import click

from backend_caps.cli.invocation import Invocation, traced_in
from backend_caps.cli.request import Request
from backend_caps.insight.run_sizes import GraphSizes, ServerSizes
from backend_caps.resolution.engine import CommandLine, Engine, Reader, engine, option_of
from backend_caps.resolution.errors import FlagValueError, raise_all

_REQUESTS, _CHUNK = "max_running_requests", "chunked_prefill_size"
_NO_PADDING = "disable_cuda_graph_padding"
_BATCHES = ("cuda_graph_bs", "cuda_graph_bs_decode")
_LARGEST_BATCH = ("cuda_graph_max_bs", "cuda_graph_max_bs_decode")
_TOKENS = ("piecewise_cuda_graph_tokens", "cuda_graph_bs_prefill")
_MOST_TOKENS = ("piecewise_cuda_graph_max_tokens", "cuda_graph_max_bs_prefill")
_OF_PHASES = (
    *("disable_decode_cuda_graph", "disable_prefill_cuda_graph"),
    *("cuda_graph_backend_decode", "cuda_graph_backend_prefill", "cuda_graph_config"),
)
"""Which graphs there are, phase by phase: what a run here has for all phases, or for none."""
_GRAPH_LISTS = frozenset({*_BATCHES, *_TOKENS})
_SWITCHES = frozenset({_NO_PADDING, *_OF_PHASES[:2]})
_OF_VLLM = (
    "scheduler_config.max_num_seqs",
    "scheduler_config.max_num_batched_tokens",
    "compilation_config.cudagraph_capture_sizes",
)
_FIELDS = (
    *(_REQUESTS, _CHUNK, _NO_PADDING, *_OF_PHASES),
    *(*_BATCHES, *_LARGEST_BATCH, *_TOKENS, *_MOST_TOKENS),
)


def is_size(known: Engine, option: str) -> bool:
    """Return whether an option of an engine is a size that is read here."""
    return _reader(known).field_of(option) is not None


def sizes_in(ctx: click.Context, request: Request) -> ServerSizes:
    """Read the sizes from the words after `--`, the file of flags, and the settings' file.

    Of an engine whose own functions read its flags, they are the final values.

    Raises:
        BackendCapsError: a value is no such number; several faults come as one group.
    """
    if request.launch is not None and request.launch.layers:
        return sizes_of(request.launch.values)
    read = None if request.reading is None else request.reading.command_line
    known = read or engine(ctx.params["rules"])
    flags = _SizeFlags(known, _line(ctx, _reader(known)))
    sizes = ServerSizes(
        max_running_requests=flags.number(_REQUESTS),
        chunked_prefill_size=flags.number(_CHUNK, least=-1),
        batches=flags.graphs(_BATCHES, _LARGEST_BATCH),
        tokens=flags.graphs(_TOKENS, _MOST_TOKENS),
        pads_graphs=flags.line.values.get(_NO_PADDING) is not True,
        of_phases=tuple(flags.words(_OF_PHASES)),
    )
    raise_all("server flags", [*flags.line.faults, *flags.faults])
    return sizes


def sizes_of(values: Mapping[str, object]) -> ServerSizes:
    """Return the sizes among vLLM's final values."""
    requests, tokens, captured = (values.get(name) for name in _OF_VLLM)
    sizes = captured if isinstance(captured, list) else []
    numbers = tuple(each for each in sizes if isinstance(each, int))
    return ServerSizes(
        max_running_requests=requests if isinstance(requests, int) else None,
        chunked_prefill_size=tokens if isinstance(tokens, int) else None,
        batches=GraphSizes(
            flag="--cudagraph-capture-sizes",
            sizes=numbers or None,
            largest_flag="--max-cudagraph-capture-size",
            largest=None,
        ),
    )


def _reader(known: Engine) -> Reader:
    """Read those sizes that a version of the engine has."""
    fields = [name for name in _FIELDS if option_of(name) in known.options]
    return Reader(known, {name: name in _SWITCHES for name in fields}, _GRAPH_LISTS)


def _line(ctx: click.Context, reader: Reader) -> CommandLine:
    line = reader.argv(ctx.ensure_object(Invocation).server_flags)
    if ctx.params["flags_file"] is not None:
        line = line.over(reader.file(ctx.params["flags_file"]))
    traced = traced_in(ctx)
    return line if traced is None else line.over(reader.mapping(traced.server_section()))


@dataclass(slots=True)
class _SizeFlags:
    """Parses the size flags that are given; a value that is no number is a fault."""

    known: Engine
    line: CommandLine
    faults: list[FlagValueError] = field(default_factory=list)

    def number(self, name: str, least: int = 1) -> int | None:
        """Read one number."""
        numbers = self._numbers(name, least)
        return numbers[-1] if numbers else None

    def graphs(self, sizes: Sequence[str], largest: Sequence[str]) -> GraphSizes | None:
        """Read what graphs are captured for, by the names that this version has for it."""
        list_name, most_name = self._has(sizes), self._has(largest)
        if list_name is None or most_name is None:
            return None
        return GraphSizes(
            flag=option_of(list_name),
            sizes=self._numbers(list_name, 1),
            largest_flag=option_of(most_name),
            largest=self.number(most_name),
        )

    def words(self, names: Iterable[str]) -> Iterator[str]:
        """Write flags as on a command line."""
        for name in names:
            match self.line.values.get(name):
                case None | False:
                    continue
                case True:
                    yield option_of(name)
                case value:
                    yield f"{option_of(name)} {value}"

    def _has(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if option_of(name) in self.known.options), None)

    def _numbers(self, name: str, least: int) -> tuple[int, ...] | None:
        values: Mapping[str, object] = self.line.values
        if name not in values:
            return None
        value = values[name]
        words = [*map(str, value if isinstance(value, list | tuple) else (value,))]
        try:
            numbers = tuple(map(int, words))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < least:
            expected = f"{'numbers' if name in _GRAPH_LISTS else 'a number'} of at least {least}"
            fault = FlagValueError(
                flag=option_of(name), value=repr(" ".join(words)), expected=expected
            )
            self.faults.append(fault)
        return numbers
