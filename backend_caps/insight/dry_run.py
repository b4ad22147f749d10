"""A dry run: the engine is made for a plan, and runs some steps of a drawn trace.

Nothing of it is served. On the simulated device what is waited for and moved is counted; on a real
one the host's clock is read, and waits and bytes are those that the plan has by design.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field

from backend_caps.capability.kind import Phase, Role
from backend_caps.insight import run_sizes
from backend_caps.insight.errors import InsightError, sentence_of
from backend_caps.insight.measure import bytes_on, handle_of
from backend_caps.insight.stand_ins import RunPlan
from backend_caps.kit.models import ModelSizes, SmallModels
from backend_caps.kit.probes.seq_lens import host_waits
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.stats import StepStats
from backend_caps.simulator import Counts, HostSync, Simulation, Waited, WaitKind
from backend_caps.startup.graph_modes import GraphMode

NAMES: Mapping[tuple[Role, Phase], str] = {
    (Role.TARGET, Phase.PREFILL): "prefill",
    (Role.TARGET, Phase.DECODE): "decode",
    (Role.TARGET, Phase.VERIFY): "verify",
    (Role.DRAFT, Phase.PREFILL): "draft prefill",
    (Role.DRAFT, Phase.DECODE): "draft",
    (Role.DRAFT_EXTEND, Phase.VERIFY): "draft_extend",
}
"""What the forwards of a role and phase are called, in the order in which they are shown."""
_WARM_UP = Sampling(max_new_tokens=2, stop_token_ids=frozenset())
_FIRST, _EVERY = 2, 3
"""The least number of open requests, and the steps from one extra request to the next."""


@dataclass(slots=True, kw_only=True)
class PhaseFigures:
    """Figures of the forwards of one role and phase, or of all work outside forwards.

    What was waited for and moved stays 0 where the device is not the simulated one.
    """

    role: Role | None = None
    phase: Phase | None = None
    modes: Counter[GraphMode] = field(default_factory=Counter)
    """Forwards by the mode in which they ran."""
    waits: Counter[str] = field(default_factory=Counter)
    """Waits of the host, by what they were for."""
    num_hidden: int = 0
    """Waits without a `synchronize`: an operator or a copy blocked."""
    bytes_to_host: int = 0
    bytes_of_lengths: int = 0
    """Bytes of the relay's lengths among `bytes_to_host`."""
    bytes_to_device: int = 0

    @property
    def name(self) -> str | None:
        """The name of the forwards; None for work outside forwards."""
        return None if self.role is None or self.phase is None else NAMES[self.role, self.phase]


class Meter:
    """Count waits and bytes since the last reading, on the simulated device.

    Args:
        simulation: the one that runs.
        engine: its copy streams tell waits for lengths from waits for tokens.
    """

    def __init__(self, simulation: Simulation, engine: Engine) -> None:
        self._simulation = simulation
        self._lengths_on = handle_of(engine.relay.copy_stream)
        self._tokens_on = handle_of(engine.step_streams.host_copy)
        self._last = self._now()

    def add_to(self, figures: PhaseFigures) -> None:
        """Add what was counted since the last call."""
        run = self._simulation
        (counts, num_hidden, num_waits), self._last = self._last, self._now()
        moved, hidden = run.counts - counts, run.hidden_syncs[num_hidden:]
        figures.waits.update(map(self._purpose, [*hidden, *run.host_waits[num_waits:]]))
        figures.num_hidden += len(hidden)
        figures.bytes_to_host += moved.bytes_to_host
        figures.bytes_of_lengths += bytes_on(moved, self._lengths_on)
        figures.bytes_to_device += moved.bytes_to_device

    def _now(self) -> tuple[Counts, int, int]:
        run = self._simulation
        return run.counts, len(run.hidden_syncs), len(run.host_waits)

    def _purpose(self, wait: HostSync) -> str:
        """Name what a wait was for: lengths or tokens by design, else the line that waited."""
        if wait.waited == Waited(WaitKind.STREAM, self._lengths_on):
            return "lengths"
        if wait.waited == Waited(WaitKind.EVENT, self._tokens_on):
            return "tokens"
        return str(wait)


class RunFigures:
    """Observe an engine's forwards and steps, from `open` until that many steps are done.

    Args:
        speculates: whether decode steps are speculative ones.
    """

    def __init__(self, *, speculates: bool) -> None:
        self.phases: dict[tuple[Role, Phase], PhaseFigures] = {}
        self.around = PhaseFigures()
        """What is counted between forwards: batches, lengths, tokens, results."""
        self.kinds: dict[str, list[tuple[StepStats, float]]] = {}
        """The counted steps, each with the seconds since the tokens of the step before."""
        self.num_steps = self.num_retracted = 0
        self._speculates = speculates
        self._meter: Meter | None = None
        self._running: tuple[Role, Phase] | None = None
        self._most_steps = 0
        self._last_s = 0.0

    def open(self, num_steps: int, meter: Meter | None) -> None:
        """Count from now on.

        Args:
            num_steps: steps whose results are counted.
            meter: counts waits and bytes; None on a real device.
        """
        self._most_steps, self._meter = num_steps, meter

    @property
    def is_open(self) -> bool:
        """Whether steps are still counted."""
        return self.num_steps < self._most_steps

    def observe(self, stats: StepStats) -> None:
        """Count a step whose result was processed."""
        since, self._last_s = self._last_s, stats.clock.tokens_s
        if not self.is_open:
            return
        kind = "prefill" if stats.mode is ForwardMode.EXTEND else stats.mode.value
        if self._speculates and stats.mode is ForwardMode.DECODE:
            kind = "speculative"
        self.kinds.setdefault(kind, []).append((stats, stats.clock.tokens_s - since))
        self.num_retracted += stats.num_retracted
        if self.num_steps + 1 == self._most_steps:
            self._read_meter(self.around)
        self.num_steps += 1

    def began(self, role: Role, phase: Phase) -> None:
        """Count what came before a forward."""
        self._running = (role, phase)
        self._read_meter(self.around)

    def ended(self, graph_mode: GraphMode) -> None:
        """Count a forward that was enqueued, and how it ran."""
        assert self._running is not None, "a forward that ends has begun"
        if not self.is_open:
            return
        role, phase = self._running
        figures = self.phases.setdefault(self._running, PhaseFigures(role=role, phase=phase))
        figures.modes[graph_mode] += 1
        self._read_meter(figures)

    def _read_meter(self, figures: PhaseFigures) -> None:
        if self.is_open and self._meter is not None:
            self._meter.add_to(figures)


@dataclass(slots=True, kw_only=True)
class DryRun:
    """An engine that was made for a plan, and what some steps of it did."""

    engine: Engine
    run: RunPlan
    """The plan that the engine was made for."""
    sizes: run_sizes.RunSizes
    figures: RunFigures
    simulation: Simulation | None
    """The simulated device; None on a real one."""
    hidden: Counter[str] | None = None
    """Operators that made the host wait, as torch reports them on CUDA; None elsewhere."""
    failure: str | None = None
    """What a step raised; None where none did."""

    def run_steps(self, num_steps: int, seed: int = 0) -> None:
        """Run some steps of a drawn trace.

        Args:
            num_steps: steps whose results are counted.
            seed: of the trace.
        """
        # set_sync_debug_mode reports waits of CUDA alone.
        is_watched = self.engine.device.type == "cuda"
        with host_waits(None) if is_watched else nullcontext() as waits:
            try:
                # The first request of a process pays for torch's own start, so it is not counted.
                self.engine.submit([1, 2, 3], _WARM_UP)
                self.engine.drain()
                meter = None if self.simulation is None else Meter(self.simulation, self.engine)
                self.figures.open(num_steps, meter)
                self._run_trace(seed)
            except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
                self.failure = sentence_of(error)
        if waits is not None:
            self.hidden = Counter(f"{own.cause} at {own.site}" for own in waits)

    def _run_trace(self, seed: int) -> None:
        arrivals = run_sizes.drawn(
            self.sizes, vocab_size=self.engine.model.config.vocab_size, seed=seed
        )
        # One more than can run waits in the queue, so that a row that is freed is used at once.
        most = self.sizes.max_running_requests + 1
        open_: list[Request] = []
        turn = 0
        while self.figures.is_open:
            open_ = [request for request in open_ if not request.is_finished]
            comes = turn % _EVERY == 0 and len(open_) < most
            for _ in range(max(comes, _FIRST - len(open_))):
                open_.append(self.engine.submit(*next(arrivals)))
            self.engine.step()
            turn += 1
        for request in open_:
            self.engine.abort(request)
        self.engine.drain()


@contextmanager
def dry_start(
    run: RunPlan,
    server: run_sizes.ServerSizes,
    device: str,
    *,
    models: SmallModels | None = None,
    model_sizes: ModelSizes = run_sizes.SMALL_MODEL,
    simulation: Simulation | None = None,
    seed: int = 0,
) -> Iterator[DryRun]:
    """Make the engine of a plan for as long as a `with` block runs.

    Args:
        run: the plan, with code that is there.
        server: the server's sizes.
        device: where it runs.
        models: folders; None makes small ones with random weights.
        model_sizes: of the small target.
        simulation: the simulated device, within whose block this is; None on a real one.
        seed: of the weights.

    Raises:
        InsightError: the engine cannot be made.
    """
    with ExitStack() as stack:
        figures = RunFigures(speculates=run.plan.flags.speculative_algorithm is not None)
        try:
            longest = None
            if models is not None:
                longest = LlamaConfig.from_folder(models.target).max_position_embeddings
            sizes = run_sizes.RunSizes.of(run.plan, server, longest)
            context = sizes.context_length
            models = models or stack.enter_context(
                run_sizes.fitting_models(run.plan, context, seed=seed, sizes=model_sizes)
            )
            engine = run_sizes.small_engine(
                run.plan, models, device, context, sizes.options, figures
            )
        except Exception as error:  # a plugin raises what it likes
            raise InsightError(
                "no-engine",
                f"this server cannot be started here on {device}: {sentence_of(error)}. Expected "
                "an engine that starts. Correct the flag or the backend, or name another backend "
                "with --stand-in.",
            ) from error
        stack.enter_context(engine)
        for backends in engine.all_backends:
            backends.observer = figures
        yield DryRun(engine=engine, run=run, sizes=sizes, figures=figures, simulation=simulation)
