"""A dry run: the engine is made for a plan, and runs some steps of a drawn trace.

Nothing of it is served to anybody. On the simulated device what is waited for and moved is counted;
on a real one the host's clock is read, and what the plan has by its design is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from backend_caps.capability.kind import Role
from backend_caps.errors import BackendCapsError
from backend_caps.insight.dry_run.errors import DryStartError
from backend_caps.insight.dry_run.sizes import ServerSizes, Sizes
from backend_caps.insight.dry_run.spending import Meter, PhaseRun, Recorder
from backend_caps.insight.dry_run.standing_in import RunPlan
from backend_caps.insight.dry_run.trace import Arrival, drawn
from backend_caps.kit.models import ModelSizes, SmallModels, small_models
from backend_caps.kit.probes.seq_lens import host_waits
from backend_caps.relay.streams import StreamLike
from backend_caps.resolution.errors import leaves_of
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.problems import misfits_of
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.graphs import total_usage
from backend_caps.runtime.memory import TokenToKVPool
from backend_caps.runtime.model import LlamaConfig
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.runtime.stats import StepStats
from backend_caps.simulator import Simulation
from backend_caps.simulator.streams import Stream

_VOCAB = 256
_HEAD_SIZES = (16, 64, 128)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WARM_UP = Sampling(max_new_tokens=2, stop_token_ids=frozenset())
_FIRST, _EVERY = 2, 3
"""Requests that there are at least; one more comes with every third step."""


@dataclass(slots=True, kw_only=True)
class StepKind:
    """Steps of one kind."""

    num_steps: int = 0
    num_replayed: int = 0
    """Those whose target was run by captured graphs."""
    num_requests: int = 0
    num_tokens: int = 0
    """Tokens that the forwards of the target computed."""
    num_made: int = 0
    """Tokens that requests got."""
    waits_for_lengths: int = 0
    """Those that the plan has by its design."""
    bytes_to_host: int = 0
    """What the plan makes cross by its design."""
    bytes_to_device: int = 0
    seconds: list[float] = field(default_factory=list)
    """From the tokens of the step before to its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Device memory."""

    kv_cache_bytes: int
    """Of the target's keys and values."""
    draft_kv_cache_bytes: int
    page_table_bytes: int
    graph_pool_bytes: int
    graph_static_bytes: int
    num_graphs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What some steps of a started server did."""

    plan: RunPlan
    sizes: Sizes
    phases: Sequence[PhaseRun]
    """The forwards of each role and phase that there were."""
    around: PhaseRun
    kinds: dict[str, StepKind]
    memory: Memory
    num_steps: int
    num_retracted: int
    hidden: Counter[str] | None = None
    """Operators that made the host wait, as torch's own watch on CUDA tells; None elsewhere."""
    failure: str | None = None
    """What a step raised; None where none did."""


class Started:
    """An engine that was made for a plan, before its first step.

    Args:
        engine: runs the steps.
        run: what it was made for.
        sizes: how large it is.
        simulation: the simulated device; None on a real one.
    """

    def __init__(
        self, engine: Engine, run: RunPlan, sizes: Sizes, simulation: Simulation | None
    ) -> None:
        self.engine, self.run, self.sizes = engine, run, sizes
        self.kinds: dict[str, StepKind] = {}
        self.num_steps = self.num_retracted = 0
        self._most_steps = 0
        self._last_s = 0.0
        meter = None
        if simulation is not None:
            meter = Meter(
                simulation,
                lengths_on=_handle(engine.relay.copy_stream),
                tokens_on=_handle(engine.step_streams.host_copy),
            )
        self.recorder = Recorder(meter)
        for own in engine.all_backends:
            own.observer = self.recorder

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        since, self._last_s = self._last_s, stats.clock.tokens_s
        if self.num_steps == self._most_steps:
            return
        self.num_steps += 1
        self.num_retracted += stats.num_retracted
        kind = self.kinds.setdefault(_name_of(stats.mode, self.run.plan), StepKind())
        kind.num_steps += 1
        kind.num_replayed += stats.replayed
        kind.num_requests += stats.num_requests
        kind.num_tokens += stats.num_tokens
        kind.num_made += stats.num_made
        kind.waits_for_lengths += stats.waits_for_lengths
        kind.bytes_to_host += stats.bytes_to_host
        kind.bytes_to_device += stats.bytes_to_device
        kind.seconds.append(stats.clock.tokens_s - since)
        if self.num_steps == self._most_steps:
            self.recorder.close()

    def run_steps(self, num_steps: int, seed: int) -> str | None:
        """Run steps of a drawn trace; return what one raised, if one did."""
        arrivals = drawn(self.sizes, vocab_size=self.engine.model.config.vocab_size, seed=seed)
        try:
            self._warm_up()
            self._most_steps = num_steps
            self.recorder.open()
            self._run(arrivals)
        except (BackendCapsError, ExceptionGroup) as error:
            return "; ".join(str(fault) for fault in leaves_of(error))
        except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
            return f"{type(error).__name__}: {error}"
        return None

    def _warm_up(self) -> None:
        """Run a request that nobody counts: the first of a process pays for torch's own start."""
        self.engine.submit([1, 2, 3], _WARM_UP)
        self.engine.drain()

    def _run(self, arrivals: Iterator[Arrival]) -> None:
        most = self.sizes.max_running_requests + 1  # one waits, so that none is short of work
        open_: list[Request] = []
        turn = 0
        while self.num_steps < self._most_steps:
            open_ = [request for request in open_ if not request.is_finished]
            comes = turn % _EVERY == 0 and len(open_) < most
            for _ in range(max(comes, _FIRST - len(open_))):
                arrival = next(arrivals)
                open_.append(self.engine.submit(arrival.prompt, arrival.sampling))
            self.engine.step()
            turn += 1
        for request in open_:
            self.engine.abort(request)
        self.engine.drain()


class _Observer:
    """Tell whoever comes later of steps; nobody before."""

    def __init__(self) -> None:
        self.started: Started | None = None

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        if self.started is not None:
            self.started.observe(stats)


@contextmanager
def dry_start(
    run: RunPlan,
    server: ServerSizes,
    device: str,
    *,
    models: SmallModels | None = None,
    simulation: Simulation | None = None,
    seed: int = 0,
) -> Iterator[Started]:
    """Make the engine of a plan for as long as a `with` block runs.

    Args:
        run: the plan, with code that is there.
        server: the server's sizes.
        device: where it runs.
        models: folders; None makes small ones with random weights.
        simulation: the simulated device, within whose block this is; None on a real one.
        seed: of the weights.

    Raises:
        DryStartError: the engine cannot be made.
    """
    with ExitStack() as stack:
        try:
            plan, longest = run.plan, None
            if models is not None:
                longest = LlamaConfig.from_folder(models.target).max_position_embeddings
            sizes = Sizes.of(plan, server, longest)
            models = models or stack.enter_context(fitting_models(plan, sizes, seed=seed))
            flags = plan.flags.model_copy(update={"context_length": sizes.context_length})
            observer = _Observer()
            engine = Engine.from_plan(
                models.target,
                replace(plan, flags=flags),
                device,
                options=sizes.options,
                observer=observer,
                draft_model_path=models.draft,
            )
        except (BackendCapsError, ExceptionGroup) as error:
            told = "; ".join(str(fault).removesuffix(".") for fault in leaves_of(error))
            raise DryStartError(device=device, problem=told) from error
        except Exception as error:  # a plugin raises what it likes
            told = f"{type(error).__name__}: {error}".rstrip(".")
            raise DryStartError(device=device, problem=told) from error
        stack.enter_context(engine)
        observer.started = Started(engine, run, sizes, simulation)
        yield observer.started


def dry_run(started: Started, *, num_steps: int, seed: int = 0) -> DryRun:
    """Run some steps of a drawn trace, and say what they did.

    Args:
        started: the engine.
        num_steps: steps whose results are counted.
        seed: of the trace.
    """
    recorder, hidden = started.recorder, None
    if started.engine.device.type == "cuda":  # the one whose torch has such a watch
        with host_waits(None) as waits:
            failure = started.run_steps(num_steps, seed)
        hidden = Counter(f"{own.cause} at {own.site}" for own in waits)
    else:
        failure = started.run_steps(num_steps, seed)
    return DryRun(
        plan=started.run,
        sizes=started.sizes,
        phases=[*recorder.phases.values()],
        around=recorder.around,
        kinds=started.kinds,
        memory=_memory(started.engine),
        num_steps=started.num_steps,
        num_retracted=started.num_retracted,
        hidden=hidden,
        failure=failure,
    )


def _name_of(mode: ForwardMode, plan: Plan) -> str:
    if mode is ForwardMode.EXTEND:
        return "prefill"
    speculates = plan.flags.speculative_algorithm is not None
    return "speculative" if speculates and mode is ForwardMode.DECODE else mode.value


def _memory(engine: Engine) -> Memory:
    caches: dict[Role, TokenToKVPool] = {}
    for own in engine.all_backends:
        cache = own.site.token_to_kv_pool
        assert isinstance(cache, TokenToKVPool), "the engine's own"
        caches.setdefault(own.role, cache)
    drafts = caches.get(Role.DRAFT)
    usage = total_usage(engine.graphs.values())
    return Memory(
        kv_cache_bytes=caches[Role.TARGET].num_bytes,
        draft_kv_cache_bytes=0 if drafts is None else drafts.num_bytes,
        page_table_bytes=engine.memory.rows.req_to_token.nbytes,
        graph_pool_bytes=usage.pool_bytes,
        graph_static_bytes=usage.static_bytes,
        num_graphs=usage.num_graphs,
    )


@contextmanager
def fitting_models(
    plan: Plan, sizes: Sizes, *, seed: int, num_layers: int | None = None
) -> Iterator[SmallModels]:
    """Make small models that a plan's backends take, for as long as a `with` block runs.

    Args:
        plan: whose backends.
        sizes: of the server.
        seed: of the weights.
        num_layers: of the target; None: as few as there can be.
    """
    settings = SpecSettings.from_flags(plan.flags)
    head_size, dtype = _taken(plan)
    model = ModelSizes(
        vocab_size=_VOCAB,
        head_size=head_size,
        max_position_embeddings=sizes.context_length,
        dtype=_DTYPES[dtype],
        num_layers=num_layers,
    )
    algorithm = None if settings is None else settings.algorithm
    with small_models(algorithm, seed=seed, sizes=model) as models:
        yield models


def _taken(plan: Plan) -> tuple[int, str]:
    """Choose a size of heads and a dtype that every backend takes; else the first of each."""
    facts = plan.facts
    heads = _HEAD_SIZES if facts.head_size is None else (facts.head_size,)
    dtypes = [name for name in _DTYPES if name == facts.dtype] or [*_DTYPES]
    for dtype in dtypes:
        for head_size in heads:
            if _fits(plan, {"head_size": head_size, "dtype": dtype, "kv_cache_dtype": dtype}):
                return head_size, dtype
    return heads[0], dtypes[0]


def _fits(plan: Plan, model: dict[str, object]) -> bool:
    asked = replace(plan, facts=plan.facts.model_copy(update=model))
    return not any(
        reason.needed is not None and reason.fact in model
        for use in plan.uses
        if use.declaration is not None
        for reason in misfits_of(use, use.declaration, asked)
    )


def _handle(stream: StreamLike | None) -> int | None:
    if stream is None:
        return None
    assert isinstance(stream, Stream), "the engine runs on the simulated device"
    return stream.handle
