"""A trace, run by the engine on the simulated device, and what is wrong with the run.

The oracle is the plain loop on the CPU, without aborts: a request's tokens are its own affair, so
whatever an overlapped run makes of it is that, or where it was given up the start of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import attrgetter, gt
from pathlib import Path
from weakref import WeakSet

import torch
from torch import Tensor

from backend_caps.relay import DEVICE_TRAITS, DeviceStreams, DeviceTraits
from backend_caps.relay.streams import EventLike
from backend_caps.runtime import Engine, Request, StepObserver
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.stats import EveryObserver
from backend_caps.simulator import Simulation, simulate
from tests.races.accepts import Accepts
from tests.races.cases import Case, Fault, Finding, Program, collect_cycles, findings_after
from tests.races.engine_setup import draft_of, make_engine, model_of, options_of, plan_of
from tests.races.traces import VOCAB_SIZE, Speculation, Trace

_MOST_STEPS = 400
"""More than any trace needs, retractions included."""
_ROOM = 1024
"""As many tokens as all requests have together."""


class EventCount(DeviceStreams):
    """The device's streams, with a count of the events that are alive."""

    def __init__(self, device: str, traits: DeviceTraits) -> None:
        super().__init__(device, traits)
        self.live: WeakSet[EventLike] = WeakSet()

    def event(self) -> EventLike:
        """Create an event, and count it."""
        event = super().event()
        self.live.add(event)
        return event


class EndlessError(Exception):
    """Requests took more steps than any legal schedule of them does."""


@dataclass(slots=True)
class Boundary:
    """Lengths between two steps, as the device and the host have them."""

    seq_lens: Tensor
    """[B] int64, device: a copy, made in the order of the schedule stream."""
    seq_lens_cpu: Tensor | None
    """[B] int64, host: the mirror itself, which nobody may write to."""
    mirrored: list[int] | None
    """What the mirror held then."""
    bounds: list[int] | None
    """The host's upper bounds, where it has any."""

    @classmethod
    def of(cls, batch: ScheduleBatch) -> Boundary:
        """Take a batch's lengths as they are."""
        mirror, bound = batch.seq_lens_cpu, batch.upper_bound
        return cls(
            seq_lens=batch.seq_lens.clone(),
            seq_lens_cpu=mirror,
            mirrored=None if mirror is None else mirror.tolist(),
            bounds=None if bound is None else bound.tolist(),
        )

    def findings(self) -> Iterator[Finding]:
        """Compare both sides, once the device has run everything."""
        lengths = self.seq_lens.tolist()
        if self.mirrored is not None and lengths != self.mirrored:
            what = f"the device has lengths {lengths}, the mirror {self.mirrored}"
            yield Finding(fault=Fault.VALUE, what=what)
        later = None if self.seq_lens_cpu is None else self.seq_lens_cpu.tolist()
        if later != self.mirrored:
            what = f"a mirror of {self.mirrored} was overwritten by {later}"
            yield Finding(fault=Fault.VALUE, what=what)
        if self.bounds is not None and any(map(gt, lengths, self.bounds)):
            what = f"the device has lengths {lengths}, above the bounds {self.bounds}"
            yield Finding(fault=Fault.VALUE, what=what)


@dataclass(slots=True)
class Watch:
    """Look at the engine between steps, without making anybody wait."""

    boundaries: list[Boundary] = field(default_factory=list)
    accepts: Accepts = field(default_factory=Accepts)

    def look(self, engine: Engine) -> None:
        """Keep what both sides have of the lengths, in the order of the schedule stream."""
        scheduler = engine.scheduler
        batches = (scheduler._running, scheduler._last)  # noqa: SLF001 - a boundary is between them
        with engine.streams.using(engine.step_streams.schedule), torch.inference_mode():
            self.boundaries.extend(Boundary.of(batch) for batch in batches if batch is not None)

    def findings(self, right: Accepts | None) -> Iterator[Finding]:
        """Compare, once the device has run everything; None: nobody drafted."""
        for boundary in self.boundaries:
            yield from boundary.findings()
        if right is not None:
            yield from self.accepts.findings(right)


def trace_of(case: Case) -> Trace:
    """Draw the trace of a case's seed."""
    if case.program is Program.HANDOVERS and not case.seed % 2:
        # Only behind a replay, which marks its last read of the page table, is the next batch
        # built while a forward still writes.
        return Trace.drawn(case.seed, replays=True)
    if case.program in {Program.DRAFTS, Program.HANDOVERS}:
        return Trace.drafting(case.seed)
    replays = case.program in {Program.REPLAYS, Program.ENDS}
    return Trace.drawn(case.seed, replays=replays)


def prepare(trace: Trace, folder: Path) -> None:
    """Run what a trace is compared with: before a mutant takes the place of code."""
    oracle(trace, folder)
    if trace.speculation is not None:
        oracle_of_drafts(trace, folder)


@cache
def oracle(trace: Trace, folder: Path) -> Sequence[Sequence[int]]:
    """Return each request's tokens, by the plain loop on the CPU, a token a step."""
    return [request.output for request in _run_plain(trace, folder)]


def num_retractions(trace: Trace, folder: Path) -> int:
    """Count how often the plain loop takes a request out of the KV cache."""
    return sum(request.num_retractions for request in _run_plain(trace, folder))


@cache
def oracle_of_drafts(trace: Trace, folder: Path) -> Accepts:
    """Return what steps accept, by the plain loop on the CPU, where all that is asked has room."""
    accepts = Accepts()
    roomy = replace(trace, mixed=False, max_total_tokens=_ROOM, max_running_requests=_ROOM)
    engine = _plain_engine(roomy, trace.speculation, folder, accepts)
    for own in sorted(trace.asked, key=attrgetter("submitted_at")):
        engine.submit(own.prompt, own.sampling)
    while engine.scheduler.has_work:
        accepts.take(engine.step())
    return accepts


def _run_plain(trace: Trace, folder: Path) -> list[Request]:
    engine = _plain_engine(trace, None, folder, EveryObserver(()))
    requests = [engine.submit(own.prompt, own.sampling) for own in trace.asked]
    engine.drain()
    return requests


def _plain_engine(
    trace: Trace, speculation: Speculation | None, folder: Path, observer: StepObserver
) -> Engine:
    """Make an engine of the plain loop, of the model that a trace's requests are for."""
    plain = replace(trace, overlapped=False, replayed=None, speculation=speculation)
    return Engine.from_plan(
        model_of(trace, folder),
        plan_of(plain),
        "cpu",
        options=options_of(plain),
        draft_model_path=draft_of(plain, folder),
        observer=observer,
    )


def run_engine(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run the trace of a case's seed on the simulated device, and list what is wrong."""
    trace = trace_of(case)
    expected = oracle(trace, folder)
    right = None if trace.speculation is None else oracle_of_drafts(trace, folder)
    watch = Watch()
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        streams = EventCount("sim", traits_of(trace))
        engine = make_engine(trace, folder, observer=watch.accepts, streams=streams)
        num_events = len(streams.live)
        requests = play(trace, engine, watch, partial(_submit, trace, engine))
        engine.drain()
        found = [*left_over(engine, simulation), *wrong_tokens(trace, requests, expected)]
        found += watch.findings(right)
        collect_cycles()
        if len(streams.live) > num_events:
            what = f"{len(streams.live) - num_events} events are still alive"
            found.append(Finding(fault=Fault.LEAK, what=what))
        watch.boundaries.clear()
    del engine, streams, requests
    return (*found, *findings_after(simulation))


def traits_of(trace: Trace) -> DeviceTraits:
    """Say what the device of a trace has."""
    return replace(DEVICE_TRAITS["sim"], has_pinned_memory=trace.pinned)


def _submit(trace: Trace, engine: Engine, place: int) -> Request:
    return engine.submit(trace.asked[place].prompt, trace.asked[place].sampling)


def play(
    trace: Trace, engine: Engine, watch: Watch, submit: Callable[[int], Request]
) -> Sequence[Request]:
    """Submit requests by their places, abort and step as the trace says, until all have ended."""
    requests: dict[int, Request] = {}
    last = max(own.submitted_at for own in trace.asked)
    for step in range(_MOST_STEPS):
        for place, own in enumerate(trace.asked):
            if own.submitted_at == step:
                requests[place] = submit(place)
            if own.aborted_at == step:
                engine.abort(requests[place])
        if step in trace.idle_steps:
            engine.scheduler.step_idle()
        watch.accepts.take(engine.step())
        if trace.watched:
            watch.look(engine)
        if step >= last and not engine.scheduler.has_work:
            return [requests[place] for place in range(len(trace.asked))]
    raise EndlessError(f"{_MOST_STEPS} steps did not end {len(trace.asked)} requests")


def left_over(engine: Engine, simulation: Simulation) -> Iterator[Finding]:
    """List what an engine has not got back, and what the device has yet to do."""
    memory = engine.memory
    counts = {
        "rows": engine.options.max_running_requests - memory.rows.num_free,
        "pages": memory.pages.num_pages - memory.pages.num_free,
        "items of device work": sum(len(q.items) for q in simulation.engine.queues.values()),
    }
    for name, count in counts.items():
        if count:
            yield Finding(fault=Fault.LEAK, what=f"{count} {name} are left over")


def wrong_tokens(
    trace: Trace, requests: Sequence[Request], expected: Sequence[Sequence[int]]
) -> Iterator[Finding]:
    """Compare what requests got with the plain loop's tokens, up to where they were given up."""
    for place, (own, request, right) in enumerate(
        zip(trace.asked, requests, expected, strict=True)
    ):
        made = request.output
        may_be_cut = own.aborted_at is not None
        if made == right or (may_be_cut and made == right[: len(made)]):
            continue
        is_poison = any(not 0 <= token < VOCAB_SIZE for token in made)
        yield Finding(
            fault=Fault.POISON if is_poison else Fault.VALUE,
            what=f"request {place} has tokens {made}, the plain loop {right}",
        )
