"""Random traces of requests, served by an engine with the backend under test.

Each request fits into the KV cache alone, so every one ends, however often it is retracted. All
requests together do not fit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.kind import Role
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.kit.models import ModelSizes, SmallModels
from backend_caps.kit.probes.attention_record import AttentionRecord
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import Forward, Scenario, dice_for, forwards_of, roles_of
from backend_caps.kit.subject import Subject
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.rules import RuleSet
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.scheduler import NewToken
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.stats import StepStats

VOCAB_SIZE = 64
"""The vocabulary of the served models."""
_MOST_NEW = 8
"""Tokens of the longest output."""
_SHORT = 2
"""The index among three requests of the one with a short prompt; earlier ones come at step 0."""
_NUM_STEPS = 2
"""Steps of a draft."""
_MOST_NODES = 8
"""Tokens of a draft tree."""
_GRAPHS = (2, 4)
"""Batch sizes of captured graphs; batches of other sizes are padded."""
_PROMPT_GRAPH = 8
"""Tokens of the only graph of prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """A request of a trace."""

    prompt: tuple[int, ...]
    sampling: Sampling
    submitted_at: int
    """The step before which it is submitted."""
    aborted_at: int | None
    """The step before which it is aborted; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTrace:
    """The requests, flags and options of one engine's run."""

    requests: tuple[TraceRequest, ...]
    flags: ServerFlags
    """The server's flags; prompts may run in a second backend object, by another name."""
    options: EngineOptions
    """The engine's options; the KV cache has fewer tokens than all requests need together."""

    @property
    def speculation(self) -> SpecSettings | None:
        """The settings of drafts; None without drafts."""
        return SpecSettings.from_flags(self.flags)

    @property
    def algorithm(self) -> Algorithm | None:
        """The algorithm of drafts; None without drafts."""
        return None if self.speculation is None else self.speculation.algorithm

    @property
    def summary(self) -> str:
        """The flags in a few words, for a fault."""
        flags = self.flags
        words = {
            f"{flags.page_size}-token pages": True,
            "mixed chunks": flags.enable_mixed_chunk,
            "graphs": not flags.disable_cuda_graph,
            "two halves": flags.enable_two_batch_overlap,
            "prompts by another object": flags.prefill_attention_backend is not None,
        }
        drafts = f"drafts by {flags.speculative_algorithm}"
        first = "no drafts" if flags.speculative_algorithm is None else drafts
        return ", ".join([first, *(word for word, holds in words.items() if holds)])

    @property
    def undrafted(self) -> ServerTrace:
        """The same requests by the plain loop, without drafts."""
        plain = self.plain
        return replace(plain, flags=plain.flags.model_copy(update=_UNDRAFTED))

    @property
    def plain(self) -> ServerTrace:
        """The same requests and drafts by the plain loop, with room for all requests."""
        count, num_tokens = len(self.requests), self.options.max_total_tokens
        assert num_tokens is not None, "a trace says how large the cache is"
        return replace(
            self,
            requests=tuple(replace(request, aborted_at=None) for request in self.requests),
            flags=self.flags.model_copy(update=_PLAIN),
            options=replace(
                self.options,
                max_running_requests=count,
                max_total_tokens=num_tokens * count,
                graph_batch_sizes=(),
                graph_token_counts=(),
            ),
        )

    def plan(self, subject: Subject) -> Plan:
        """Resolve the engine's plan, by the backend's declaration."""
        backends = {
            name: Backend(
                name=name, status=Status.OK, source=subject.source, declaration=subject.declaration
            )
            for name in (subject.name, self.flags.prefill_attention_backend)
            if name is not None
        }
        uses, rules = uses_of(self.flags, backends), RuleSet.builtin(RUNTIME)
        return resolve(uses, self.flags, rules=rules, policy=Policy.QUIET)


_UNDRAFTED: Mapping[str, object] = {
    "speculative_algorithm": None,
    "speculative_eagle_topk": None,
    "speculative_num_steps": None,
    "speculative_num_draft_tokens": None,
}
_PLAIN: Mapping[str, object] = {
    "disable_overlap_schedule": True,
    "enable_mixed_chunk": False,
    "disable_cuda_graph": True,
    "enable_two_batch_overlap": False,
    "prefill_attention_backend": None,
}


def longest_of(scenario: Scenario) -> int:
    """Return the longest context of a trace: more than a page."""
    return max(40, scenario.page_size + 24)


def trace_of(subject: Subject, scenario: Scenario, seed: int) -> ServerTrace:
    """Draw a trace with the features that a backend claims.

    The scenario's forward is that of its steps: `decode`, `mixed` or, with drafts, `verify` or
    `tree`.
    """
    dice = dice_for(scenario, seed)
    drafts = _drafts(subject, scenario, dice, seed)
    requests = tuple(_request(scenario, dice, place) for place in range(dice.randint(4, 6)))
    kinds = subject.claim_as(frozenset, "graph_replay")
    is_tree = scenario.forward is Forward.TREE
    is_mixed = scenario.forward is Forward.MIXED or (
        bool(drafts) and is_tree == ((seed // 2 + seed // 4) % 2 == 0)
    )
    replayed = bool(kinds) and dice.random() < 0.6  # noqa: PLR2004 - more often than not
    chunk = 8 if is_mixed else dice.choice((None, 4, 8))
    may_halve = subject.claim("two_batch_overlap") is True
    prompts_by = f"{subject.name} for prompts" if seed % 4 in {0, 3} else None
    flags = ServerFlags.model_validate(
        {
            "attention_backend": subject.name,
            "prefill_attention_backend": prompts_by,
            "page_size": scenario.page_size,
            "enable_mixed_chunk": is_mixed,
            "disable_cuda_graph": not replayed,
            "enable_two_batch_overlap": may_halve and dice.random() < 0.5,  # noqa: PLR2004 - every other time
            **drafts,
        }
    )
    replays_prompts = replayed and BatchKind.MIXED_BATCH in kinds and not drafts
    options = EngineOptions(
        max_running_requests=4,
        max_total_tokens=_num_pages(scenario, requests, flags) * scenario.page_size,
        chunked_prefill_size=chunk,
        graph_batch_sizes=_GRAPHS if replayed else (),
        graph_token_counts=(min(_PROMPT_GRAPH, chunk or _PROMPT_GRAPH),) if replays_prompts else (),
    )
    return ServerTrace(requests=requests, flags=flags, options=options)


def _drafts(
    subject: Subject, scenario: Scenario, dice: random.Random, seed: int
) -> Mapping[str, object]:
    """Draw the flags of drafts: a draft model where its roles are claimed, else n-grams."""
    if scenario.forward not in {Forward.VERIFY, Forward.TREE}:
        return {}
    is_tree = scenario.forward is Forward.TREE
    drafts = {Forward.DRAFT_EXTEND, *([Forward.DRAFT] if is_tree else [])}
    has_model = drafts <= set(forwards_of(subject)) and Role.DRAFT in roles_of(subject)
    models = (Algorithm.EAGLE, Algorithm.STANDALONE)
    algorithm = (*models, Algorithm.NGRAM)[seed % 3] if has_model else Algorithm.NGRAM
    topk = scenario.topk if is_tree else 1
    most = min(_MOST_NODES, topk + (_NUM_STEPS - 1) * topk * topk + 1)
    num_tokens = dice.randint(_NUM_STEPS + 2, most) if is_tree else _NUM_STEPS + 1
    return {
        "speculative_algorithm": algorithm.value,
        "speculative_attention_mode": "decode",
        "speculative_eagle_topk": topk,
        "speculative_num_steps": _NUM_STEPS,
        "speculative_num_draft_tokens": num_tokens,
    }


def _request(scenario: Scenario, dice: random.Random, place: int) -> TraceRequest:
    """Draw a request; most outputs cross the end of a page.

    The first two requests run together and always do, so that one of them is retracted.
    """
    size = scenario.page_size
    least, most = (4, 12) if place % 3 == _SHORT or size == 1 else (max(1, size - 3), size)
    submitted_at = 0 if place < _SHORT else dice.choice((0, 0, 0, dice.randrange(6)))
    is_aborted = dice.random() < 0.1  # noqa: PLR2004 - seldom
    return TraceRequest(
        prompt=tuple(dice.randrange(VOCAB_SIZE) for _ in range(dice.randint(least, most))),
        sampling=Sampling(
            max_new_tokens=dice.randint(5, _MOST_NEW),
            temperature=dice.choice((0.0, 1.0)),
            seed=dice.randrange(1000),
            stop_token_ids=frozenset(),
        ),
        submitted_at=submitted_at,
        aborted_at=submitted_at + dice.randrange(2, 9) if is_aborted else None,
    )


def _num_pages(scenario: Scenario, requests: tuple[TraceRequest, ...], flags: ServerFlags) -> int:
    """Return the pages of a cache in which two requests can start, but not both finish.

    The longest request fits, with the draft tokens that its steps write behind it.
    """
    size, settings = scenario.page_size, SpecSettings.from_flags(flags)
    behind = 0 if settings is None else settings.lookahead
    longest = max(len(each.prompt) + each.sampling.max_new_tokens for each in requests)
    # Decode rows join prompts only where there is room for both.
    beside = longest if flags.enable_mixed_chunk and size == 1 else 0
    return -(-(longest + behind + beside) // size) + 1


_MOST_STEPS = 600
"""More steps than any trace needs, retractions included."""
_BEHIND = 32
"""Positions of the models behind the longest context, for draft tokens."""


@dataclass(slots=True)
class StepWatch:
    """Records steps: their mode, retractions and accepted tokens."""

    mode: ForwardMode | None = None
    """The mode of the step whose result was processed last."""
    num_retracted: int = 0
    accepted: dict[int, dict[int, int]] = field(default_factory=dict)
    """By request, then by the length of its output before the step: accepted tokens."""

    def observe(self, stats: StepStats) -> None:
        """Record a step's mode and retractions."""
        self.mode = stats.mode
        self.num_retracted += stats.num_retracted

    def take(self, tokens: Sequence[NewToken]) -> None:
        """Count the tokens of the processed step by request, where it was a decode."""
        if self.mode is ForwardMode.DECODE:
            for request, count in Counter(request for request, _ in tokens).items():
                accepted = self.accepted.setdefault(request.number, {})
                accepted[len(request.output) - count] = count


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTrace:
    """The result of a served trace."""

    outputs: Sequence[Sequence[int]]
    """The tokens of each request."""
    accepted: Mapping[int, Mapping[int, int]]
    """By request, then by the length of its output before a step without prompts: accepted tokens.
    A draft depends on the tokens before it alone, so any run with the step has the same count."""
    num_retracted: int
    """Retractions of requests from the KV cache."""
    leaks: Sequence[str]
    """Rows and pages that are not free at the end, with their counts."""


def sizes_of(scenario: Scenario) -> ModelSizes:
    """Return the sizes of the models that serve a scenario's traces."""
    return ModelSizes(
        vocab_size=VOCAB_SIZE,
        num_heads=scenario.num_heads,
        num_kv_heads=scenario.num_kv_heads,
        head_size=scenario.head_size,
        max_position_embeddings=longest_of(scenario) + _BEHIND,
    )


def serve(
    rig: Rig, trace: ServerTrace, models: SmallModels, record: AttentionRecord | None = None
) -> ServedTrace:
    """Serve a trace by an engine, to its end, within `Rig.running`.

    Args:
        rig: the backend and its device.
        trace: the requests and flags.
        models: the models that serve them.
        record: gets the attention of each layer outside of graphs.

    Raises:
        BackendCapsError: the engine rejects the backend's declaration.
        Exception: any that the backend raises.
    """
    watch = StepWatch()
    submitted: dict[int, Request] = {}
    subject = rig.subject
    recording: AbstractContextManager[None] = nullcontext()
    if record is not None:
        record.submitted, subject, recording = submitted, record.recorded_subject, record.active()
    with (
        recording,
        Engine.from_plan(
            models.target,
            trace.plan(subject),
            rig.device,
            options=trace.options,
            observer=watch,
            draft_model_path=models.draft if trace.speculation else None,
        ) as engine,
    ):
        outputs = _play(trace, engine, watch, submitted)
        engine.drain()
        memory = engine.memory
        missing = {
            "rows": engine.options.max_running_requests - memory.rows.num_free,
            "pages": memory.pages.num_pages - memory.pages.num_free,
        }
        return ServedTrace(
            outputs=outputs,
            accepted=watch.accepted,
            num_retracted=watch.num_retracted,
            leaks=[f"{count} {name}" for name, count in missing.items() if count],
        )


def _play(
    trace: ServerTrace, engine: Engine, watch: StepWatch, submitted: dict[int, Request]
) -> Sequence[Sequence[int]]:
    """Submit and abort requests at their steps until all have ended; return their outputs.

    `submitted` gets each request, by its place in the trace.
    """
    last = max(request.submitted_at for request in trace.requests)
    step = 0
    while step <= last or engine.scheduler.has_work:
        for place, request in enumerate(trace.requests):
            if request.submitted_at == step:
                submitted[place] = engine.submit(request.prompt, request.sampling)
            if request.aborted_at == step:
                engine.abort(submitted[place])
        watch.take(engine.step())
        step += 1
        assert step < _MOST_STEPS, f"{len(trace.requests)} requests did not end in {step} steps"
    return [list(submitted[place].output) for place in range(len(trace.requests))]
