"""The engine itself, serving a trace with a backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from backend_caps.kit.models import ModelSizes, SmallModels
from backend_caps.kit.scenarios import Scenario
from backend_caps.kit.subject import Subject
from backend_caps.kit.workloads.traces import VOCAB_SIZE, ServerTrace, longest_of
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.request import Request
from backend_caps.runtime.scheduler import NewToken
from backend_caps.runtime.stats import StepStats

_MOST_STEPS = 600
"""More than any trace needs, retractions included."""
_BEHIND = 32
"""Positions of the models behind the longest context, of which drafts take some."""


@dataclass(slots=True)
class _Watch:
    """Take in steps: whether they drafted, and what they did beside it."""

    mode: ForwardMode | None = None
    """Of the step whose result was processed last."""
    num_retracted: int = 0
    accepted: dict[int, dict[int, int]] = field(default_factory=dict)
    """By request, then by the length of its output before the step: tokens that it got."""

    def observe(self, stats: StepStats) -> None:
        """Keep what kind of step it was."""
        self.mode = stats.mode
        self.num_retracted += stats.num_retracted

    def take(self, made: Sequence[NewToken]) -> None:
        """Count the tokens of the step that was processed, where it drafted."""
        if self.mode is ForwardMode.DECODE:
            for request, count in Counter(request for request, _ in made).items():
                own = self.accepted.setdefault(request.number, {})
                own[len(request.output) - count] = count


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What came of a trace."""

    outputs: Sequence[Sequence[int]]
    """The tokens of each request."""
    accepted: Mapping[int, Mapping[int, int]]
    """By request, then by the length of its output before a step without prompts: what it got. A
    draft hangs on the tokens before it alone, so it is the same in every run that has the step."""
    num_retracted: int
    """How often a request was taken out of the KV cache."""
    left_over: Sequence[str]
    """What the engine has not got back."""


def sizes_of(scenario: Scenario) -> ModelSizes:
    """Say how large the models of a scenario's traces are."""
    return ModelSizes(
        vocab_size=VOCAB_SIZE,
        num_heads=scenario.num_heads,
        num_kv_heads=scenario.num_kv_heads,
        head_size=scenario.head_size,
        max_position_embeddings=longest_of(scenario) + _BEHIND,
    )


def serve(subject: Subject, trace: ServerTrace, models: SmallModels, device: str) -> Served:
    """Run a trace by the engine, to its end.

    Raises:
        BackendCapsError: the engine does not take the backend, as it declares itself.
        Exception: whatever the backend raises.
    """
    watch = _Watch()
    settings = trace.speculation
    engine = Engine.from_plan(
        models.target,
        trace.plan(subject),
        device,
        options=trace.options,
        observer=watch,
        draft_model_path=models.draft if settings and settings.has_draft_model else None,
    )
    with engine:
        requests = _play(trace, engine, watch)
        engine.drain()
        return Served(
            outputs=[list(request.output) for request in requests],
            accepted=watch.accepted,
            num_retracted=watch.num_retracted,
            left_over=list(_left_over(engine)),
        )


def _play(trace: ServerTrace, engine: Engine, watch: _Watch) -> Sequence[Request]:
    """Submit, abort and step as the trace says, until nothing is left to do."""
    requests: dict[int, Request] = {}
    last = max(own.submitted_at for own in trace.asked)
    step = 0
    while step <= last or engine.scheduler.has_work:
        for place, own in enumerate(trace.asked):
            if own.submitted_at == step:
                requests[place] = engine.submit(own.prompt, own.sampling)
            if own.aborted_at == step:
                engine.abort(requests[place])
        watch.take(engine.step())
        step += 1
        assert step < _MOST_STEPS, f"{len(trace.asked)} requests did not end in {step} steps"
    return [requests[place] for place in range(len(trace.asked))]


def _left_over(engine: Engine) -> Iterator[str]:
    memory = engine.memory
    rows = engine.options.max_running_requests - memory.rows.num_free
    pages = memory.pages.num_pages - memory.pages.num_free
    yield from (f"{count} {name}" for name, count in (("rows", rows), ("pages", pages)) if count)
