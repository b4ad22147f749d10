"""How large a dry run is: the server's sizes where they are small, and smaller ones else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.memory import num_pages_of
from backend_caps.runtime.options import EngineOptions, page_size_of
from backend_caps.runtime.speculative.settings import SpecSettings

MOST_REQUESTS = 8
"""Requests that run at once, where the server takes more."""
LONGEST_CHUNK = 64
"""Prompt tokens of a step, where the server takes more."""
MOST_NEW = 24
"""Tokens of the longest output."""
_GRAPHS = (1, 2, 4, MOST_REQUESTS)
_FEW_TOKENS = 16
_Said: TypeAlias = int | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """What graphs are captured for, as the server's flags say; None is not said."""

    flag: str
    """The flag that lists sizes."""
    largest_flag: str
    """The one that has the largest."""
    sizes: tuple[int, ...] | None = None
    largest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSizes:
    """What the server's flags say of room and cutting; None is not said."""

    max_running_requests: int | None = None
    chunked_prefill_size: int | None = None
    """Below 1: prompts are not cut."""
    batches: GraphSizes | None = None
    """Batches of decode, in requests; None where the server has no flags for them."""
    tokens: GraphSizes | None = None
    """Steps of prompts, in tokens; None likewise."""
    pads_graphs: bool = True
    """Whether a batch is padded to a captured size."""
    of_phases: tuple[str, ...] = ()
    """Flags that give each phase graphs of its own, which a run here has not."""

    @property
    def said(self) -> Mapping[str, object]:
        """What was said, by flag; one server says the same on all ranks."""
        named: dict[str, object] = {
            "--max-running-requests": self.max_running_requests,
            "--chunked-prefill-size": self.chunked_prefill_size,
            "--disable-cuda-graph-padding": None if self.pads_graphs else True,
        }
        for own in (self.batches, self.tokens):
            if own is not None:
                sizes = None if own.sizes is None else " ".join(map(str, own.sizes))
                named |= {own.flag: sizes, own.largest_flag: own.largest}
        return {flag: value for flag, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of the server, and what it is here."""

    flag: str
    server: str
    here: str
    is_servers: bool
    """Whether the run has what the server's flags say, where they say something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a dry run."""

    page_size: int
    max_running_requests: int
    chunked_prefill_size: int | None
    longest_prompt: int
    longest_output: int
    behind: int
    """Tokens behind a request's end that speculative steps write to."""
    server: ServerSizes
    flags: ServerFlags

    @classmethod
    def of(cls, plan: Plan, server: ServerSizes, longest: int | None = None) -> Sizes:
        """Cut a server's sizes down to what a small run has.

        Args:
            plan: whose flags and pages count.
            server: what else the server's flags say.
            longest: the longest context of a named model; None where one is made.

        Raises:
            PageSizeError: no page size serves every backend.
        """
        page_size, settings = page_size_of(plan), SpecSettings.from_flags(plan.flags)
        rows = min(server.max_running_requests or MOST_REQUESTS, MOST_REQUESTS)
        chunk = _chunk(server.chunked_prefill_size, page_size)
        limits = [own for own in (plan.flags.context_length, longest) if own is not None]
        output = max(1, min((MOST_NEW, *(own // 2 for own in limits))))
        prompts = [own - output for own in limits]
        return cls(
            page_size=page_size,
            max_running_requests=rows,
            chunked_prefill_size=chunk,
            longest_prompt=max(1, min((2 * (chunk or LONGEST_CHUNK), *prompts))),
            longest_output=output,
            behind=0 if settings is None else settings.lookahead,
            server=server,
            flags=plan.flags,
        )

    @property
    def context_length(self) -> int:
        """The longest context that a request comes to."""
        return self.longest_prompt + self.longest_output

    @property
    def options(self) -> EngineOptions:
        """The engine's room: as much as all requests of a step can fill."""
        pages = num_pages_of(self.context_length + self.behind, self.page_size)
        batches = self.graph_batch_sizes
        return EngineOptions(
            max_running_requests=self.max_running_requests,
            max_total_tokens=self.max_running_requests * pages * self.page_size,
            chunked_prefill_size=self.chunked_prefill_size,
            graph_batch_sizes=batches,
            max_graph_batch_size=batches[-1],
            pads_graphs=self.server.pads_graphs,
            graph_token_counts=self.graph_token_counts,
        )

    @property
    def graph_batch_sizes(self) -> tuple[int, ...]:
        """What decode is captured for: the server's sizes, none above the largest batch here."""
        most = self.max_running_requests
        usual = _GRAPHS if self.server.pads_graphs else range(1, most + 1)
        return _captured(self.server.batches, usual, most)

    @property
    def graph_token_counts(self) -> tuple[int, ...]:
        """What prompts are captured for: the server's, none above the largest step here."""
        chunk = self._chunk
        usual = (min(_FEW_TOKENS, chunk), chunk)
        return _captured(self.server.tokens, usual, self._most_tokens)

    @property
    def graphs_hold_batches(self) -> bool:
        """Whether every batch of decode has a graph, by the sizes that there are."""
        rows = self.max_running_requests
        needed = {rows} if self.server.pads_graphs else {*range(1, rows + 1)}
        return needed <= {*self.graph_batch_sizes}

    @property
    def graphs_hold_prompts(self) -> bool:
        """Whether a whole chunk has a graph, by the sizes that there are."""
        return self.graph_token_counts[-1] == self._most_tokens

    @property
    def _chunk(self) -> int:
        longest = self.max_running_requests * self.context_length
        return min(self.chunked_prefill_size or self.longest_prompt, longest)

    @property
    def _most_tokens(self) -> int:
        """Tokens of a chunk, and of the decode rows that join it."""
        mixed = self.max_running_requests - 1 if self.flags.enable_mixed_chunk else 0
        return self._chunk + mixed

    @property
    def told(self) -> tuple[Size, ...]:
        """Each size, as the server's flags have it and as it is here."""
        server, context = self.server, self.flags.context_length
        chunk = server.chunked_prefill_size
        return (
            _size("--max-running-requests", server.max_running_requests, self.max_running_requests),
            _size("--chunked-prefill-size", chunk, self.chunked_prefill_size),
            _size("--page-size", self.flags.page_size, self.page_size),
            _size("--context-length", context, self.context_length),
            *self._of_graphs(server.batches, self.graph_batch_sizes),
            *self._of_graphs(server.tokens, self.graph_token_counts),
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """The server's flags that do not hold here, each with why."""
        return tuple(
            f"{own}; a run here has the graphs of all phases" for own in self.server.of_phases
        )

    def _of_graphs(self, said: GraphSizes | None, here: tuple[int, ...]) -> Iterator[Size]:
        """Tell what graphs are captured for, where a flag says so; a list goes before a bound."""
        if said is None or self.flags.disable_cuda_graph:
            return
        if said.sizes is not None:
            yield _size(said.flag, tuple(sorted({*said.sizes})), here)
        elif said.largest is not None:
            yield _size(said.largest_flag, said.largest, here[-1])


def _captured(said: GraphSizes | None, usual: Iterable[int], most: int) -> tuple[int, ...]:
    """List sizes: those said, or the usual ones up to the largest; each above `most` is `most`."""
    if said is not None and said.sizes is not None:
        return tuple(sorted({min(size, most) for size in said.sizes}))
    largest = most if said is None else min(said.largest or most, most)
    return tuple(sorted({*(size for size in usual if size < largest), largest}))


def _chunk(said: int | None, page_size: int) -> int | None:
    """Cut prompts as the server does, into smaller chunks; none is smaller than a page."""
    if said is not None and said < 1:
        return None
    return max(min(said or LONGEST_CHUNK, LONGEST_CHUNK), page_size)


def _size(flag: str, said: _Said, here: _Said) -> Size:
    is_off = here is None and isinstance(said, int) and said < 1
    return Size(
        flag=flag,
        server=_word(said, "not given"),
        here=_word(here, "off"),
        is_servers=is_off or said in (None, here),
    )


def _word(size: _Said, nothing: str) -> str:
    if size is None:
        return nothing
    return ", ".join(map(str, size)) if isinstance(size, tuple) else str(size)
