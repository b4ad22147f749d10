"""How large a dry run is: its sizes, models and requests.

A size is the server's where that is small enough, and a smaller one otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import TypeAlias

from backend_caps.kit.models import ModelSizes, SmallModels, small_models
from backend_caps.report.dry_run_documents import SizeDocument
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.problems import misfits_of
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.memory import num_pages_of
from backend_caps.runtime.options import DTYPES, EngineOptions, page_size_of
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.stats import StepObserver

MOST_REQUESTS = 8
"""Requests that run at once, where the server takes more."""
LONGEST_CHUNK = 64
"""Prompt tokens of a step, where the server takes more."""
MOST_NEW = 24
"""Tokens of the longest output."""
STEADY_PROMPT = 4
"""Prompt tokens of requests that outlive the steps that are counted."""
_GRAPHS = (1, 2, 4, MOST_REQUESTS)
_FEW_TOKENS = 16
_SHORTEST, _SHORT, _LEAST_NEW = 3, 16, 4
"""Tokens of drawn requests: of the shortest prompt, of the longest short one, of an output."""
SMALL_MODEL = ModelSizes(vocab_size=256)
"""The target of a dry run."""
_HEAD_SIZES = (16, 64, 128)
_Value: TypeAlias = int | tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """The sizes to capture graphs for, from the server's flags; None where not given."""

    flag: str
    """The flag that lists the sizes."""
    largest_flag: str
    """The flag that bounds the sizes."""
    sizes: tuple[int, ...] | None = None
    largest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSizes:
    """The server's flags for sizes; None where one is not given."""

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
    """Flags that set graphs phase by phase, which a run here does not support."""

    @property
    def given(self) -> Mapping[str, object]:
        """The sizes that are given, by flag; they must be equal on all ranks of a server."""
        named: dict[str, object] = {
            "--max-running-requests": self.max_running_requests,
            "--chunked-prefill-size": self.chunked_prefill_size,
            "--disable-cuda-graph-padding": None if self.pads_graphs else True,
        }
        for graphs in (self.batches, self.tokens):
            if graphs is not None:
                sizes = None if graphs.sizes is None else " ".join(map(str, graphs.sizes))
                named |= {graphs.flag: sizes, graphs.largest_flag: graphs.largest}
        return {flag: value for flag, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSizes:
    """The sizes of a dry run."""

    page_size: int
    max_running_requests: int
    chunked_prefill_size: int | None
    longest_prompt: int
    longest_output: int
    behind: int
    """Tokens that speculative steps may write beyond a request's last one."""
    server: ServerSizes
    flags: ServerFlags

    @classmethod
    def of(cls, plan: Plan, server: ServerSizes, longest: int | None = None) -> RunSizes:
        """Cut a server's sizes down to what a small run has.

        Args:
            plan: whose flags and pages count.
            server: what else the server's flags say.
            longest: the longest context of a named model; None where one is made.

        Raises:
            EngineError: `page-size`: no page size serves every backend.
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
        """The longest context that a request can reach."""
        return self.longest_prompt + self.longest_output

    @property
    def options(self) -> EngineOptions:
        """The engine's options; the KV cache holds what all running requests can fill."""
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
        """Batch sizes to capture decode for: the server's, none above the largest batch here."""
        most = self.max_running_requests
        usual = _GRAPHS if self.server.pads_graphs else range(1, most + 1)
        return _captured(self.server.batches, usual, most)

    @property
    def graph_token_counts(self) -> tuple[int, ...]:
        """Token counts to capture prefill for: the server's, none above the largest step here."""
        chunk = self._chunk
        usual = (min(_FEW_TOKENS, chunk), chunk)
        return _captured(self.server.tokens, usual, self._most_tokens)

    @property
    def graphs_hold_batches(self) -> bool:
        """Whether every batch of decode has a graph of its size, or of a larger one when padded."""
        rows = self.max_running_requests
        needed = {rows} if self.server.pads_graphs else {*range(1, rows + 1)}
        return needed <= {*self.graph_batch_sizes}

    @property
    def graphs_hold_prompts(self) -> bool:
        """Whether the largest step of a prompt has a graph."""
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
    def compared(self) -> tuple[SizeDocument, ...]:
        """Each size on the server beside the size here."""
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
        """The server's flags that have no effect here, each with the reason."""
        return tuple(
            f"{flag}; a run here has the graphs of all phases" for flag in self.server.of_phases
        )

    def _of_graphs(self, given: GraphSizes | None, here: tuple[int, ...]) -> Iterator[SizeDocument]:
        """Compare the sizes that graphs are captured for, where given; a list beats a bound."""
        if given is None or self.flags.disable_cuda_graph:
            return
        if given.sizes is not None:
            yield _size(given.flag, tuple(sorted({*given.sizes})), here)
        elif given.largest is not None:
            yield _size(given.largest_flag, given.largest, here[-1])


def _captured(given: GraphSizes | None, usual: Iterable[int], most: int) -> tuple[int, ...]:
    """List sizes: those given, or the usual ones up to the largest; each above `most` is `most`."""
    if given is not None and given.sizes is not None:
        return tuple(sorted({min(size, most) for size in given.sizes}))
    largest = most if given is None else min(given.largest or most, most)
    return tuple(sorted({*(size for size in usual if size < largest), largest}))


def _chunk(given: int | None, page_size: int) -> int | None:
    """Cut prompts as the server does, into smaller chunks; none is smaller than a page."""
    if given is not None and given < 1:
        return None
    return max(min(given or LONGEST_CHUNK, LONGEST_CHUNK), page_size)


def _size(flag: str, given: _Value, here: _Value) -> SizeDocument:
    is_off = here is None and isinstance(given, int) and given < 1
    return SizeDocument(
        flag=flag,
        server=_word(given, "not given"),
        here=_word(here, "off"),
        is_servers=is_off or given in (None, here),
    )


def _word(size: _Value, nothing: str) -> str:
    if size is None:
        return nothing
    return ", ".join(map(str, size)) if isinstance(size, tuple) else str(size)


@contextmanager
def fitting_models(
    plan: Plan, context_length: int, *, seed: int = 0, sizes: ModelSizes = SMALL_MODEL
) -> Iterator[SmallModels]:
    """Make small models that a plan's backends take, for as long as a `with` block runs.

    Args:
        plan: whose backends.
        context_length: the longest context of the target.
        seed: of the weights.
        sizes: of the target; head size, context and dtype are chosen here.
    """
    settings = SpecSettings.from_flags(plan.flags)
    head_size, dtype = _taken(plan)
    model = replace(
        sizes, head_size=head_size, max_position_embeddings=context_length, dtype=DTYPES[dtype]
    )
    algorithm = None if settings is None else settings.algorithm
    with small_models(algorithm, seed=seed, sizes=model) as models:
        yield models


def _taken(plan: Plan) -> tuple[int, str]:
    """Choose a head size and a dtype that every backend takes; else the first of each."""
    facts = plan.facts
    heads = _HEAD_SIZES if facts.head_size is None else (facts.head_size,)
    dtypes = [name for name in DTYPES if name == facts.dtype] or [*DTYPES]
    for dtype, head_size in product(dtypes, heads):
        model = {"head_size": head_size, "dtype": dtype, "kv_cache_dtype": dtype}
        tried = replace(plan, facts=facts.model_copy(update=model))
        if not any(why.fact in model for use in plan.uses for why in misfits_of(use, tried)):
            return head_size, dtype
    return heads[0], dtypes[0]


def small_engine(
    plan: Plan,
    models: SmallModels,
    device: str,
    context_length: int,
    options: EngineOptions,
    observer: StepObserver,
) -> Engine:
    """Make the engine of a plan, with contexts as short as the run allows, to save memory."""
    flags = plan.flags.model_copy(update={"context_length": context_length})
    return Engine.from_plan(
        models.target,
        replace(plan, flags=flags),
        device,
        options=options,
        observer=observer,
        draft_model_path=models.draft,
    )


def submit_endless(engine: Engine, num_requests: int, num_new: int) -> None:
    """Submit requests of `STEADY_PROMPT` tokens that none of the recorded steps finishes."""
    sampling = Sampling(max_new_tokens=num_new, stop_token_ids=frozenset())
    for number in range(num_requests):
        engine.submit(range(number, number + STEADY_PROMPT), sampling)


def drawn(
    sizes: RunSizes, *, vocab_size: int, seed: int
) -> Iterator[tuple[tuple[int, ...], Sampling]]:
    """Draw prompts with their sampling, without end: short ones, of a chunk and of several in turn.

    Args:
        sizes: the longest prompt, and how prompts are cut.
        vocab_size: tokens to draw from.
        seed: of the draw.
    """
    dice = random.Random(seed)  # noqa: S311 - the same again by its seed
    chunk = min(sizes.chunked_prefill_size or sizes.longest_prompt, sizes.longest_prompt)
    ends = (min(_SHORT, chunk), chunk, sizes.longest_prompt)
    longest = sizes.longest_output
    for place, most in cycle(enumerate(ends)):
        least = min(_SHORTEST if place == 0 else most // 2, most)
        prompt = tuple(dice.randrange(vocab_size) for _ in range(dice.randint(least, most)))
        num_new = dice.randint(min(_LEAST_NEW, longest), longest)
        yield prompt, Sampling(max_new_tokens=num_new, stop_token_ids=frozenset())
