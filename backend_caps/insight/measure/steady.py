"""Decode steps in steady state, under a plan, on the simulated device: what they wait for and move.

It is the real engine, with small models. A count is the same on every machine; a time would be the
simulator's own, so there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend_caps.kit.models import SmallModels
from backend_caps.relay.streams import StreamLike
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.observers import StepTotals
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.simulator import Counts, Waited, WaitKind, simulate
from backend_caps.simulator.streams import Stream

BATCH_SIZE = 4
"""Requests of every step that is counted."""
NUM_STEPS = 8
"""Steps that are counted."""
MAX_RUNNING_REQUESTS = 32
"""Rows of the request pool, row 0 aside."""
_SETTLING = 4
"""Steps before them: one of prompts, and decode steps until each has one before it."""
_PROMPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySteps:
    """What some decode steps did, all together."""

    num_steps: int
    """How many they were."""
    batch_size: int
    """Requests of each."""
    pool_size: int
    """Rows of the request pool, row 0 included."""
    counts: Counts
    """What they waited for, moved and launched."""
    num_replayed: int
    """Those whose model was run by a captured graph."""
    num_made: int
    """Tokens that they made."""
    hidden_syncs: tuple[str, ...]
    """Operators that made the host wait, each with its line."""
    lengths_on: int | None
    """The stream that brings lengths to the host; None where none does."""

    @property
    def num_waits_for_lengths(self) -> int:
        """Waits of the host for lengths."""
        if self.lengths_on is None:
            return 0
        return self.counts.waits.get(Waited(WaitKind.STREAM, self.lengths_on), 0)

    @property
    def bytes_of_lengths(self) -> int:
        """Bytes of lengths that crossed to the host."""
        return (
            0 if self.lengths_on is None else self.counts.bytes_to_host_on.get(self.lengths_on, 0)
        )


def steady_steps(plan: Plan, models: SmallModels) -> SteadySteps:
    """Run requests under a plan, and count steps in the middle of their decoding.

    Raises:
        BackendCapsError: the plan, or a flag of it, cannot be served.
        Exception: whatever a backend raises.
    """
    totals = StepTotals(num_first=0)
    with simulate("eager") as simulation, _engine(plan, models, totals) as engine:
        _settle(engine, plan)
        num_before, before = len(simulation.hidden_syncs), simulation.counts
        made_before, eager_before = totals.num_made, totals.num_eager.total()
        for _ in range(NUM_STEPS):
            engine.step()
        counts = simulation.counts - before
        return SteadySteps(
            num_steps=NUM_STEPS,
            batch_size=BATCH_SIZE,
            pool_size=engine.relay.pool_size,
            counts=counts,
            num_replayed=NUM_STEPS - (totals.num_eager.total() - eager_before),
            num_made=totals.num_made - made_before,
            hidden_syncs=tuple(map(str, simulation.hidden_syncs[num_before:])),
            lengths_on=_handle(engine.relay.copy_stream),
        )


def _engine(plan: Plan, models: SmallModels, totals: StepTotals) -> Engine:
    """Make an engine whose contexts are no longer than what is run: counts do not hang on it."""
    flags = plan.flags.model_copy(update={"context_length": _PROMPT + _num_new(plan)})
    options = EngineOptions(
        max_running_requests=MAX_RUNNING_REQUESTS,
        graph_batch_sizes=(BATCH_SIZE,),
    )
    return Engine.from_plan(
        models.target,
        replace(plan, flags=flags),
        "sim",
        options=options,
        observer=totals,
        draft_model_path=models.draft,
    )


def _settle(engine: Engine, plan: Plan) -> None:
    """Bring a batch of requests to the middle of their decode steps; none ends before the last."""
    endless = Sampling(max_new_tokens=_num_new(plan), stop_token_ids=frozenset())
    for number in range(BATCH_SIZE):
        engine.submit([number + place for place in range(_PROMPT)], endless)
    for _ in range(_SETTLING):
        engine.step()


def _num_new(plan: Plan) -> int:
    """Count the tokens that no request comes to, were all drafts accepted."""
    settings = SpecSettings.from_flags(plan.flags)
    most = 1 if settings is None else settings.accept_tokens
    return (_SETTLING + NUM_STEPS + 1) * most


def _handle(stream: StreamLike | None) -> int | None:
    if stream is None:
        return None
    assert isinstance(stream, Stream), "the engine runs on the simulated device"
    return stream.handle
