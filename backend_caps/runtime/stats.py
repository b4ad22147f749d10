"""What a step did, how long the host took for it, and observers of steps.

Times are of the host's clock, in seconds. On a device with streams a launch returns before the
work is done; on one without, the model's time is the forward's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.startup.graph_modes import GraphMode


@dataclass(slots=True)
class StepClock:
    """When the host passed the stations of one step; the scheduler sets them as it goes."""

    began_s: float
    """It began to choose the batch."""
    built_s: float = 0.0
    """It had built the batch."""
    lengths_s: float = 0.0
    """It had the lengths that the plan asks for."""
    model_s: float = 0.0
    """It entered the model."""
    model_done_s: float = 0.0
    """It came back from the model."""
    launched_s: float = 0.0
    """All of the step was enqueued."""
    result_s: float = 0.0
    """It began to wait for the step's tokens."""
    tokens_s: float = 0.0
    """It had the tokens."""
    done_s: float = 0.0
    """It had handed them to their requests."""
    num_lengths: int = 0
    """Requests whose lengths it waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One processed step."""

    mode: ForwardMode
    """What kind of step it was."""
    num_requests: int
    """Requests in its batch."""
    num_tokens: int
    """Tokens that the forward computed."""
    num_made: int
    """Tokens that requests got."""
    num_running: int
    """Requests that have a row."""
    num_waiting: int
    """Requests whose prompt has not run, or not all of it."""
    num_retracted: int
    """Requests that were taken out of the KV cache since the step before."""
    total_seq_lens: int
    """Tokens of all contexts."""
    waits_for_lengths: bool
    """Whether the host waited for lengths before the launch."""
    bytes_to_host: int
    """What crossed from the device for the step."""
    bytes_to_device: int
    """What crossed to the device for the step."""
    graph_mode: GraphMode
    """How the target's forward ran."""
    in_halves: bool
    """Whether it ran in two halves."""
    clock: StepClock
    """When the host passed its stations."""
    accept_lens: tuple[int, ...] = ()
    """How many tokens a verify gave each request that is still there, its own one included; none
    where the step did not speculate."""

    @property
    def replayed(self) -> bool:
        """Whether captured graphs ran it, one or several."""
        return self.graph_mode is not GraphMode.EAGER

    @property
    def planned_waits(self) -> int:
        """Waits of the host that the loop has by design: for the tokens, and for lengths.

        They are counted, not measured; on a device without streams they cost nothing.
        """
        return 1 + self.waits_for_lengths

    @property
    def host_s(self) -> float:
        """The host's time outside the model, waiting aside: building, launching, processing."""
        clock = self.clock
        launch_s = clock.launched_s - clock.began_s - (clock.model_done_s - clock.model_s)
        lengths_s = clock.lengths_s - clock.built_s if self.waits_for_lengths else 0.0
        return launch_s - lengths_s + (clock.done_s - clock.tokens_s)

    @property
    def wait_s(self) -> float:
        """The host's time waiting for the tokens."""
        return self.clock.tokens_s - self.clock.result_s

    @property
    def overlap_ratio(self) -> float:
        """The share of the time from launch to tokens in which the host did other things."""
        span_s = self.clock.tokens_s - self.clock.launched_s
        return 1.0 - self.wait_s / span_s if span_s > 0 else 0.0


class StepObserver(Protocol):
    """Called with every processed step."""

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""


def now_s() -> float:
    """Read the host's clock."""
    return perf_counter()


def total_seq_lens(batch: ScheduleBatch) -> int:
    """Sum the lengths of a batch's contexts, by the mirror or, without one, by its requests.

    The mirror has a plain step's own tokens in it, and a speculative step's not yet; a request has
    what the host has seen, which is behind by the steps under way.
    """
    if batch.seq_lens_cpu is not None:
        return sum(batch.seq_lens_cpu.tolist())
    return sum(len(request.prompt) + len(request.output) for request in batch.requests)


@dataclass(frozen=True, slots=True)
class EveryObserver:
    """Call several observers with every step."""

    observers: tuple[StepObserver, ...]
    """Called in this order."""

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        for observer in self.observers:
            observer.observe(stats)


@dataclass(slots=True)
class StepTotals:
    """Remember the first steps, and the sums over all of them."""

    num_first: int
    """How many steps to keep whole; a long run has more than a reader needs."""
    first: list[StepStats] = field(default_factory=list)
    """These steps."""
    num_steps: Counter[ForwardMode] = field(default_factory=Counter)
    """Steps of each kind."""
    num_eager: Counter[ForwardMode] = field(default_factory=Counter)
    """Those of them that no captured graph ran."""
    num_in_pieces: Counter[ForwardMode] = field(default_factory=Counter)
    """Those of them that graphs ran between attentions."""
    num_in_halves: Counter[ForwardMode] = field(default_factory=Counter)
    """Those of all steps whose target's forward ran in two halves."""
    num_made: int = 0
    """Tokens that requests got."""
    num_retracted: int = 0
    """Requests that were taken out of the KV cache, each time."""
    num_verified: int = 0
    """Trees and chains of drafts that were verified, one a request and step."""
    num_accepted: int = 0
    """Tokens that verifies gave, their own ones included."""
    planned_waits: int = 0
    """Times that the plan makes the host wait; counted, not measured."""
    waits_for_lengths: int = 0
    """Those of them that are for lengths."""
    bytes_to_host: int = 0
    """What crossed from the device."""
    bytes_to_device: int = 0
    """What crossed to the device."""
    host_s: float = 0.0
    """The host's time outside the model."""
    wait_s: float = 0.0
    """The host's time waiting for tokens."""
    in_flight_s: float = 0.0
    """From each step's launch to the host having its tokens."""

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        if len(self.first) < self.num_first:
            self.first.append(stats)
        self.num_steps[stats.mode] += 1
        if not stats.replayed:
            self.num_eager[stats.mode] += 1
        if stats.graph_mode is GraphMode.PIECEWISE:
            self.num_in_pieces[stats.mode] += 1
        if stats.in_halves:
            self.num_in_halves[stats.mode] += 1
        self.num_made += stats.num_made
        self.num_retracted += stats.num_retracted
        self.num_verified += len(stats.accept_lens)
        self.num_accepted += sum(stats.accept_lens)
        self.planned_waits += stats.planned_waits
        self.waits_for_lengths += stats.waits_for_lengths
        self.bytes_to_host += stats.bytes_to_host
        self.bytes_to_device += stats.bytes_to_device
        self.host_s += stats.host_s
        self.wait_s += stats.wait_s
        self.in_flight_s += stats.clock.tokens_s - stats.clock.launched_s

    @property
    def overlap_ratio(self) -> float:
        """The share of the time in flight in which the host did not wait."""
        return 1.0 - self.wait_s / self.in_flight_s if self.in_flight_s > 0 else 0.0
