"""Run any case, in a process or under a mutant, and turn what is raised into findings."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from backend_caps import Configuration, GraphSizes, Phase, Plan, Role
from backend_caps.errors import BackendCapsError
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import Engine, ForwardBatch, ForwardContext, Handover, Request, StepStats
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.chunk_sizes import ChunkProfiler
from backend_caps.runtime.graphs.capture import capture_graphs
from backend_caps.runtime.memory import Pools, ReqToTokenPool, make_pool
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.step import StepOutput, Worker, scores_of
from backend_caps.simulator import Simulation, simulate
from backend_caps.simulator.errors import SimDeviceError
from backend_caps.simulator.queues import Op
from backend_caps.startup.graph_modes import uniform_buckets
from tests.races import engine_runs
from tests.races.cases import Case, Fault, Finding, Program, collect_cycles, findings_after
from tests.races.engine_runs import (
    EndlessError,
    oracle,
    prepare,
    run_engine,
    trace_of,
    wrong_tokens,
)
from tests.races.engine_setup import make_engine, plan_of
from tests.races.mixed_loop import run_mixed
from tests.races.mutation import Mutant, mutated
from tests.races.speculative_loop import run_speculative
from tests.races.traces import MAX_LENGTH, VOCAB_SIZE, Trace

_NUM_STEPS = 3


class StepFailedError(Exception):
    """What an observer raises in the middle of a step."""


@dataclass(slots=True)
class FailingObserver:
    """Let some steps pass, and fail at the next one."""

    num_left: int = _NUM_STEPS

    def observe(self, stats: StepStats) -> None:  # noqa: ARG002 - it fails whatever they are
        """Count a step."""
        self.num_left -= 1
        if not self.num_left:
            raise StepFailedError


def run_ended(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Fail a step where the seed is even, else delete the engine, and list what is wrong."""
    trace, fails = trace_of(case), case.seed % 2 == 0
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        engine = make_engine(trace, folder, observer=FailingObserver() if fails else None)
        for own in trace.asked:
            engine.submit(own.prompt, own.sampling)
        try:
            for _ in range(_NUM_STEPS if not fails else 10 * _NUM_STEPS):
                engine.step()
        except StepFailedError:
            found = [*_still_running(simulation)]
            del engine
        else:
            del engine
            collect_cycles()
            found = [*_still_running(simulation)]
    return (*found, *findings_after(simulation))


def _still_running(simulation: Simulation) -> Iterator[Finding]:
    """Tell of operators that have not run; the poisoning of what was freed is none."""
    items = [item for queue in simulation.engine.queues.values() for item in queue.items]
    operators = [item.name for item in items if isinstance(item, Op) and item.name != "free"]
    if operators:
        what = f"{len(operators)} operators run on, {operators[0]} first"
        yield Finding(fault=Fault.LEAK, what=what)


_SIZES = (8, 4, 2)


class ChunkFailedError(Exception):
    """The last forward of a profile."""


class FailingWorker(Worker):
    """Run forwards; the last one fails behind its launch, as a kernel's own check does."""

    def forward(self, batch: ForwardBatch) -> StepOutput:
        """Enqueue a forward."""
        output = super().forward(batch)
        if batch.num_tokens == _SIZES[-1]:
            raise ChunkFailedError
        return output


@dataclass(slots=True)
class IdleClock:
    """A clock that is only to be read while the device has nothing to do."""

    simulation: Simulation
    found: list[Finding] = field(default_factory=list)

    def __call__(self) -> float:
        """Read the clock."""
        num_items = sum(len(q.items) for q in self.simulation.engine.queues.values())
        if num_items:
            what = f"the clock was read with {num_items} items of device work left"
            self.found.append(Finding(fault=Fault.VALUE, what=what))
        return 0.0


def run_profiled(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Profile, then run the trace of a case's seed, and list what is wrong."""
    drawn = Trace.drawn(case.seed)
    trace = replace(drawn, asked=tuple(replace(own, aborted_at=None) for own in drawn.asked))
    expected = oracle(trace, folder)
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        engine = make_engine(trace, folder)
        found = _profile(engine, simulation)
        requests = [engine.submit(own.prompt, own.sampling) for own in trace.asked]
        engine.drain()
        found += wrong_tokens(trace, requests, expected)
    del engine
    return (*found, *findings_after(simulation))


def _profile(engine: Engine, simulation: Simulation) -> list[Finding]:
    clock = IdleClock(simulation)
    worker = FailingWorker(engine.model, engine.backends, {})
    profiler = ChunkProfiler(worker.forward, engine.resources, VOCAB_SIZE, clock)
    try:
        for size in _SIZES:
            profiler.time_chunk(size)
    except ChunkFailedError:
        return clock.found
    return [Finding(fault=Fault.HOST, what="the last forward did not fail")]


_ROWS = (2, 1)


def _pools(plan: Plan, model: LlamaModel) -> Pools:
    """Make pools in which row r has slot r for its first token."""
    size = len(_ROWS)
    rows = ReqToTokenPool(
        max_requests=size, max_context_len=MAX_LENGTH, page_size=1, device=model.device
    )
    rows.req_to_token[:, 0] = torch.arange(size + 1, device=model.device)
    return Pools(rows, make_pool(plan, model.config, model, size + 1))


@torch.inference_mode()
def run_captures(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Capture and replay under a case's schedule, and list what is wrong."""
    trace = Trace.drawn(case.seed, replays=True)
    tokens = [case.seed % VOCAB_SIZE, (7 * case.seed + 3) % VOCAB_SIZE]
    expected = _eager(folder, trace, tokens)
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        logits = _replayed(folder, trace, tokens)
    difference = (logits - expected).abs().max().item()
    found = []
    if not difference < 1e-3:
        what = f"scores of a replay differ by {difference} from those of an eager forward"
        found.append(Finding(fault=Fault.VALUE, what=what))
    return (*found, *findings_after(simulation))


def _replayed(folder: Path, trace: Trace, tokens: list[int]) -> Tensor:
    streams = DeviceStreams("sim")
    stream = streams.private_stream()
    plan = plan_of(trace)
    sizes = {Role.TARGET: GraphSizes(buckets={Phase.DECODE: uniform_buckets((4,))})}
    configuration = Configuration.from_plan(
        plan, pool_size=max(_ROWS) + 1, device="sim", graph_sizes=sizes, streams=streams
    )
    # The FutureMap waits for the device once, so it is made before what a capture has to wait for.
    model = load_llama(folder, streams.device)
    backends = PhaseBackends(plan.uses, Role.TARGET, _pools(plan, model))
    graphs = capture_graphs(
        lambda contexts: scores_of(model, *contexts), backends, configuration, stream=stream
    ).phases
    with streams.using(stream):
        return graphs[Phase.DECODE].replay(_first_tokens(tokens, streams.device)).output.cpu()


def _eager(folder: Path, trace: Trace, tokens: list[int]) -> Tensor:
    cpu = torch.device("cpu")
    model = load_llama(folder, cpu)
    plan = plan_of(trace)
    backends = PhaseBackends(plan.uses, Role.TARGET, _pools(plan, model))
    backend, batch = backends.of(Phase.DECODE), _first_tokens(tokens, cpu)
    backend.init_forward_metadata(batch)
    return scores_of(model, ForwardContext(backend, batch))


def _first_tokens(tokens: list[int], device: torch.device) -> ForwardBatch:
    rows = torch.tensor(_ROWS, device=device)
    ones = torch.ones(len(_ROWS), dtype=torch.int64, device=device)
    return ForwardBatch(
        mode=ForwardMode.DECODE,
        input_ids=torch.tensor(tokens, device=device),
        positions=ones - 1,
        req_pool_indices=rows,
        seq_lens=ones,
        out_cache_loc=rows,
        seq_lens_cpu=torch.ones(len(_ROWS), dtype=torch.int64),
        seq_lens_sum=len(_ROWS),
    )


def run_handovers(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run the trace of a case's seed by two engines, and list what is wrong."""
    trace = engine_runs.trace_of(case)
    expected = engine_runs.oracle(trace, folder)
    right = None if trace.speculation is None else engine_runs.oracle_of_drafts(trace, folder)
    watch = engine_runs.Watch()
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        one, other = (DeviceStreams("sim", engine_runs.traits_of(trace)) for _ in range(2))
        prefill = make_engine(trace, folder, mode="prefill", streams=one)
        decode = make_engine(trace, folder, mode="decode", observer=watch.accepts, streams=other)
        submit = partial(_take_over, decode, _run_prompts(trace, prefill))
        requests = engine_runs.play(trace, decode, watch, submit)
        found = list(engine_runs.wrong_tokens(trace, requests, expected))
        for engine in (prefill, decode):
            engine.drain()
            found += engine_runs.left_over(engine, simulation)
        found += watch.findings(right)
        watch.boundaries.clear()
    del prefill, decode, engine, requests, submit
    collect_cycles()
    return (*found, *findings_after(simulation))


def _run_prompts(trace: Trace, engine: Engine) -> Mapping[int, Handover]:
    """Run all prompts, side by side; return what each leaves, by its place in the trace."""
    ways = [engine.hand_over([own.prompt], own.sampling) for own in trace.asked]
    return {place: next(way) for place, way in enumerate(ways)}


def _take_over(engine: Engine, handovers: Mapping[int, Handover], place: int) -> Request:
    return engine.take_over(handovers[place])


_RUNS: Mapping[Program, Callable[[Case, Path], tuple[Finding, ...]]] = {
    Program.ENGINE: run_engine,
    Program.REPLAYS: run_engine,
    Program.DRAFTS: run_engine,
    Program.HANDOVERS: run_handovers,
    Program.ENDS: run_ended,
    Program.SPECULATIVE: run_speculative,
    Program.MIXED: run_mixed,
    Program.CAPTURES: run_captures,
    Program.PROFILES: run_profiled,
}
COMPARED = frozenset({Program.ENGINE, Program.REPLAYS, Program.DRAFTS, Program.HANDOVERS})
"""Those that are compared with runs of code as it is."""


def run_case(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run a case, and list what is wrong; what the device or the host raises is a finding too.

    Args:
        case: what to run.
        folder: the models'.
    """
    try:
        return run_raising(case, folder)
    except EndlessError as error:
        return (Finding(fault=Fault.ENDLESS, what=str(error)),)
    except SimDeviceError as error:
        return (Finding(fault=Fault.DEVICE, what=error.message),)
    except (AssertionError, BackendCapsError, LookupError, RuntimeError, ValueError) as error:
        return (Finding(fault=Fault.HOST, what=f"{type(error).__name__}: {error}"),)


def run_mutated(mutant: Mutant, case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run a case with a mutant in place, beside what the code as it is makes of it."""
    if case.program in COMPARED:
        prepare(trace_of(case), folder)
    with mutated(mutant):
        return run_case(case, folder)


def run_raising(case: Case, folder: Path) -> tuple[Finding, ...]:
    """Run a case, and list what is wrong; what is raised goes to the caller, with its traceback."""
    with _steady_memory():
        return _RUNS[case.program](case, folder)


@contextmanager
def _steady_memory() -> Iterator[None]:
    """Free memory by reference counts alone: when a collection comes depends on the process."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
