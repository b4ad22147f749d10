"""What each phase's forwards wait for and move, and what is around them, as they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from backend_caps.capability.kind import Phase, Role
from backend_caps.runtime.graphs import GraphMode
from backend_caps.simulator import Counts, Simulation, Waited, WaitKind
from backend_caps.simulator.simulation import HostSync

AROUND = "around"
"""What is no forward: batches are built, lengths and tokens cross, results are processed."""
NAMES: Mapping[tuple[Role, Phase], str] = MappingProxyType(
    {
        (Role.TARGET, Phase.PREFILL): "prefill",
        (Role.TARGET, Phase.DECODE): "decode",
        (Role.TARGET, Phase.VERIFY): "verify",
        (Role.DRAFT, Phase.PREFILL): "draft prefill",
        (Role.DRAFT, Phase.DECODE): "draft",
        (Role.DRAFT_EXTEND, Phase.VERIFY): "draft_extend",
    }
)
"""What the forwards of a role and phase are called, in the order in which they are shown."""


@dataclass(slots=True, kw_only=True)
class Spent:
    """What the host waited for, and what crossed."""

    waits: Counter[str] = field(default_factory=Counter)
    """Waits of the host, by what they were for."""
    num_hidden: int = 0
    """Those of them that no `synchronize` shows."""
    bytes_to_host: int = 0
    bytes_of_lengths: int = 0
    """Those of them that are the relay's lengths."""
    bytes_to_device: int = 0

    def add(self, other: Spent) -> None:
        """Add what was spent elsewhere."""
        self.waits += other.waits
        self.num_hidden += other.num_hidden
        self.bytes_to_host += other.bytes_to_host
        self.bytes_of_lengths += other.bytes_of_lengths
        self.bytes_to_device += other.bytes_to_device


@dataclass(slots=True, kw_only=True)
class PhaseRun:
    """The forwards of one role and phase."""

    role: Role | None = None
    """None of what is around forwards."""
    phase: Phase | None = None
    modes: Counter[GraphMode] = field(default_factory=Counter)
    """How they ran."""
    spent: Spent | None = None
    """None where nothing is counted: the device is not the simulated one."""

    @property
    def place(self) -> tuple[Role, Phase]:
        """Whose forwards these are."""
        assert self.role is not None, "what is around forwards is in no place"
        assert self.phase is not None, "a role's forwards have a phase"
        return self.role, self.phase

    @property
    def num_forwards(self) -> int:
        """How many there were."""
        return self.modes.total()


@dataclass(frozen=True, slots=True)
class _Mark:
    """What had been counted at a moment."""

    counts: Counts
    num_hidden: int
    num_waits: int


class Meter:
    """Say what was spent since a moment, on the simulated device.

    Args:
        simulation: the one that runs.
        lengths_on: the stream that brings lengths to the host; None where none does.
        tokens_on: the stream that brings tokens.
    """

    def __init__(
        self, simulation: Simulation, *, lengths_on: int | None, tokens_on: int | None
    ) -> None:
        self._simulation = simulation
        self._lengths_on, self._tokens_on = lengths_on, tokens_on
        self._last = self._mark()

    def take(self) -> Spent:
        """Return what was spent since the last time."""
        before, self._last = self._last, self._mark()
        counts = self._last.counts - before.counts
        hidden = self._simulation.hidden_syncs[before.num_hidden :]
        waits = [*hidden, *self._simulation.host_waits[before.num_waits :]]
        lengths = 0
        if self._lengths_on is not None:
            lengths = counts.bytes_to_host_on.get(self._lengths_on, 0)
        return Spent(
            waits=Counter(map(self._word, waits)),
            num_hidden=len(hidden),
            bytes_to_host=counts.bytes_to_host,
            bytes_of_lengths=lengths,
            bytes_to_device=counts.bytes_to_device,
        )

    def _mark(self) -> _Mark:
        run = self._simulation
        return _Mark(run.counts, len(run.hidden_syncs), len(run.host_waits))

    def _word(self, wait: HostSync) -> str:
        """Say what a wait was for: what each step waits for by its design, or a line."""
        if wait.waited == Waited(WaitKind.STREAM, self._lengths_on):
            return "lengths"
        if wait.waited == Waited(WaitKind.EVENT, self._tokens_on):
            return "tokens"
        return str(wait)


class Recorder:
    """Put what is spent to the phase that spends it; `engine.all_backends` tell of forwards.

    Args:
        meter: says what is spent; None where nothing is counted.
    """

    def __init__(self, meter: Meter | None) -> None:
        self._meter = meter
        self._running: tuple[Role, Phase] | None = None
        self._is_open = False
        self.phases: dict[tuple[Role, Phase], PhaseRun] = {}
        self.around = PhaseRun(spent=None if meter is None else Spent())

    def open(self) -> None:
        """Record from now on."""
        self._is_open = True
        if self._meter is not None:
            self._meter.take()

    def close(self) -> None:
        """Record nothing more."""
        self._take(self.around)
        self._is_open = False

    def began(self, role: Role, phase: Phase) -> None:
        """Take in that a forward of a role begins."""
        self._running = (role, phase)
        self._take(self.around)

    def ended(self, graph_mode: GraphMode) -> None:
        """Take in that it was enqueued, and how it ran."""
        assert self._running is not None, "a forward that ends has begun"
        if not self._is_open:
            return
        role, phase = self._running
        run = self.phases.setdefault(
            self._running,
            PhaseRun(role=role, phase=phase, spent=None if self._meter is None else Spent()),
        )
        run.modes[graph_mode] += 1
        self._take(run)

    def _take(self, run: PhaseRun) -> None:
        if self._is_open and self._meter is not None:
            assert run.spent is not None, "where there is a meter, everything is counted"
            run.spent.add(self._meter.take())
