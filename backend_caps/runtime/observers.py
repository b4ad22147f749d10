"""Observers of steps: several at once, one that comes late, and one that remembers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.graphs import GraphMode
from backend_caps.runtime.stats import StepObserver, StepStats


@dataclass(frozen=True, slots=True)
class EveryObserver:
    """Tell several observers of every step, in their order."""

    observers: tuple[StepObserver, ...]
    """Whom to tell."""

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        for observer in self.observers:
            observer.observe(stats)


@dataclass(slots=True)
class LateObserver:
    """Tell another observer of the steps after `begin`: those that warm up are nobody's."""

    observer: StepObserver
    """Whom to tell."""
    has_begun: bool = field(default=False, init=False)

    def begin(self) -> None:
        """Pass on every step from now on."""
        self.has_begun = True

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        if self.has_begun:
            self.observer.observe(stats)


@dataclass(slots=True)
class StepTotals:
    """Remember the first steps, and the sums over all of them."""

    num_first: int
    """How many steps to keep whole; a long run has more than anybody reads."""
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
    """Times that the plan makes the host wait; nobody measures them."""
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
