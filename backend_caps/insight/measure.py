"""What the mirror costs a decode step under a plan, counted on the simulated device.

The engine is the real one, with small models. A count is the same on every machine; a time would be
the simulator's own, so times come from stored results of GPUs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.errors import BackendCapsError
from backend_caps.insight import run_sizes
from backend_caps.insight.errors import InsightError, faults_in
from backend_caps.kit.models import ModelSizes, SmallModels
from backend_caps.report import step_costs
from backend_caps.report.plans import PlanDocument
from backend_caps.resolution.plan import CauseKind, Plan, Resolved
from backend_caps.resolution.uses import UseKind
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.stats import StepTotals
from backend_caps.simulator import DEVICE_NAME, Counts, Waited, WaitKind, register, simulate
from backend_caps.simulator.streams import Stream

_Run = TypeVar("_Run")
BATCH_SIZE = 4
"""Requests of every step that is counted."""
NUM_STEPS = 8
"""Steps that are counted."""
_MAX_REQUESTS = 32
"""Rows of the request pool, row 0 aside."""
_SETTLING = 4
"""Steps before the counted ones: one prefill, then decode until overlap is in steady state."""
_MODEL = ModelSizes(vocab_size=128, num_heads=2, num_kv_heads=1)
"""A target with twice as many tokens as the widest tree of any backend here."""
_LONGEST = 1 << 20
"""The longest context of the small models, of which a run takes what it needs."""
_CHECKOUT = Path(__file__).resolve().parents[2]
_OF_LOOPS = "gpu"
"""The benchmark that times steps; `make gpu` writes results of others beside it."""
_UNNAMED = (
    "no flag names the attention backend of every forward, and what an engine picks by itself "
    "cannot run here; one whose code is installed was expected. Name it with --attention-backend."
)


def measure_document(
    plan: Plan, document: PlanDocument, results: Path | None
) -> step_costs.MeasureDocument:
    """Run the plan's configuration, and write down what its steps cost, or why it cannot run.

    Args:
        plan: what is run.
        document: the same, as it is shown.
        results: the folder with results of GPUs; None is that of the checkout.

    Raises:
        InsightError: a file among the results holds no result.
    """
    times = stored_times(results)
    measured, problem = None, None
    try:
        measured = measured_levels(plan).model_copy(update={"times": times})
    except InsightError as error:
        problem = error.message
    return step_costs.MeasureDocument(
        schema_="backend-caps/measure@1", plan=document, measured=measured, problem=problem
    )


def measured_levels(plan: Plan) -> step_costs.MeasuredDocument:
    """Run a plan's configuration at each level that its backends can run with.

    Where no lengths are relayed, the level does nothing, and the plan's own is the only one.

    Raises:
        InsightError: the configuration itself cannot be run here.
    """
    register()
    own = plan.host_seq_lens
    others = [level for level in HostSeqLens if plan.relays_speculation and level is not own]
    try:
        if any(use.kind is UseKind.ENGINE_DEFAULT for use in plan.uses):
            raise InsightError("not-measured", _UNNAMED)
        with run_sizes.fitting_models(plan, _LONGEST, sizes=_MODEL) as models:
            ran, left_out = at_levels(
                plan, (own, *others), lambda level: steady_steps(at_level(plan, level), models)
            )
    except (BackendCapsError, ExceptionGroup) as error:
        raise InsightError(
            "not-measured",
            f"this configuration cannot be run here, so nothing of it is counted: {error}",
        ) from error
    return step_costs.MeasuredDocument(
        device=DEVICE_NAME,
        batch_size=BATCH_SIZE,
        num_steps=NUM_STEPS,
        pool_size=ran[own].pool_size,
        drafts=drafts_document(plan),
        replayed=ran[own].num_replayed == NUM_STEPS,
        tokens_made=ran[own].num_made / (NUM_STEPS * BATCH_SIZE),
        levels=[
            ran[level].costs.model_copy(update={"is_planned": level is own})
            for level in HostSeqLens
            if level in ran
        ],
        left_out=left_out,
        times=[],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadySteps:
    """What `NUM_STEPS` decode steps did."""

    costs: step_costs.LevelDocument
    """Means over the steps, at the plan's level."""
    pool_size: int
    """Rows of the request pool, row 0 included."""
    num_replayed: int
    """Steps whose model was run by a captured graph."""
    num_made: int
    """Tokens that all steps made."""


def steady_steps(plan: Plan, models: SmallModels) -> SteadySteps:
    """Run requests under a plan, and count steps in the middle of their decoding.

    Raises:
        BackendCapsError: the plan, or a flag of it, cannot be served.
        Exception: whatever a backend raises.
    """
    num_new, unobserved = _num_new(plan), StepTotals(num_first=0)
    options = EngineOptions(max_running_requests=_MAX_REQUESTS, graph_batch_sizes=(BATCH_SIZE,))
    context = run_sizes.STEADY_PROMPT + num_new
    with (
        simulate("eager") as simulation,
        run_sizes.small_engine(plan, models, DEVICE_NAME, context, options, unobserved) as engine,
    ):
        run_sizes.submit_endless(engine, BATCH_SIZE, num_new)
        for _ in range(_SETTLING):
            engine.step()
        num_before, before = len(simulation.hidden_syncs), simulation.counts
        totals = engine.scheduler.observer = StepTotals(num_first=0)
        for _ in range(NUM_STEPS):
            engine.step()
        counts = simulation.counts - before
        stream = handle_of(engine.relay.copy_stream)
        costs = step_costs.LevelDocument(
            level=plan.host_seq_lens.value,
            is_planned=True,
            host_waits=counts.num_host_waits / NUM_STEPS,
            waits_for_lengths=counts.waits[Waited(WaitKind.STREAM, stream)] / NUM_STEPS,
            bytes_to_host=counts.bytes_to_host / NUM_STEPS,
            bytes_of_lengths=bytes_on(counts, stream) / NUM_STEPS,
            bytes_to_device=counts.bytes_to_device / NUM_STEPS,
            event_waits=counts.num_event_waits / NUM_STEPS,
            launches=counts.num_ops / NUM_STEPS,
            hidden_syncs=dict(Counter(map(str, simulation.hidden_syncs[num_before:]))),
        )
        return SteadySteps(
            costs=costs,
            pool_size=engine.relay.pool_size,
            num_replayed=NUM_STEPS - totals.num_eager.total(),
            num_made=totals.num_made,
        )


def handle_of(stream: object) -> int | None:
    """Return the handle of a stream of the simulated device; None of no stream."""
    if stream is None:
        return None
    assert isinstance(stream, Stream), "the engine runs on the simulated device"
    return stream.handle


def bytes_on(counts: Counts, stream: int | None) -> int:
    """Count the bytes that crossed to the host on a stream; 0 on none."""
    return 0 if stream is None else counts.bytes_to_host_on.get(stream, 0)


def _num_new(plan: Plan) -> int:
    """Count more tokens than a request can get in these steps, were every draft accepted."""
    settings = SpecSettings.from_flags(plan.flags)
    most = 1 if settings is None else settings.accept_tokens
    return (_SETTLING + NUM_STEPS + 1) * most


def at_levels(
    plan: Plan, levels: Iterable[HostSeqLens], run: Callable[[HostSeqLens], _Run]
) -> tuple[dict[HostSeqLens, _Run], list[step_costs.LeftOutDocument]]:
    """Call `run` at each level; list the levels where it cannot run, each with its reason.

    Args:
        plan: its backends say which levels they can run with.
        levels: tried in this order.
        run: called once a level.

    Raises:
        BackendCapsError: the plan's own level cannot run.
    """
    ran, left_out = dict[HostSeqLens, _Run](), list[step_costs.LeftOutDocument]()
    for level in levels:
        is_own = level is plan.host_seq_lens
        reason = None if is_own else _reason_against(plan, level)
        if reason is None:
            try:
                ran[level] = run(level)
                continue
            except Exception as error:  # a plugin raises what it likes
                fault = _fault_of(error)
                if is_own:
                    raise fault from error
                reason = str(fault)
        left_out.append(step_costs.LeftOutDocument(level=level.value, reason=reason))
    return ran, left_out


def _fault_of(error: Exception) -> BackendCapsError:
    """Return the only fault of a group; put several, or what a plugin raised, into one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, BackendCapsError):
        return error
    return InsightError(
        "step-failed",
        f"a step raised {'; '.join(faults_in(error))}. Expected backends that run on this device. "
        "Correct the backend, or name another.",
    )


def at_level(plan: Plan, level: HostSeqLens) -> Plan:
    """Return the plan with another level of `host_seq_lens`; all other values stay."""

    def put(_: object, own: Resolved) -> Resolved:
        return replace(own, value=level) if own.capability == "host_seq_lens" else own

    return plan.with_values(put)


def _reason_against(plan: Plan, level: HostSeqLens) -> str | None:
    """Name the backends that need more than a level; None where none does."""
    needing: dict[str, None] = {}
    for cause in plan["host_seq_lens"].causes:
        if cause.kind is CauseKind.BACKEND:
            assert isinstance(cause.value, HostSeqLens), "a cause has a level of the scale"
            if level < cause.value:
                needing[f"backend {cause.name!r} {cause.reason}"] = None
    return "; ".join(needing) or None


def drafts_document(plan: Plan) -> step_costs.DraftsDocument | None:
    """Write down how a plan's steps speculate; None where they do not."""
    settings = SpecSettings.from_flags(plan.flags)
    return None if settings is None else step_costs.DraftsDocument.of(settings)


class _Kind(BaseModel):
    benchmark: str = _OF_LOOPS


class _Row(BaseModel):
    comparison: str
    side: str
    batch_size: int
    step_us: float
    host_wait_us: float | None = None
    lengths_us: float | None = None


class _Result(BaseModel):
    hardware: str | None = None
    rows: tuple[_Row, ...]


def stored_times(folder: Path | None) -> list[step_costs.TimeDocument]:
    """Read what the mirror cost a step on GPUs, from the files that `make gpu` writes.

    Args:
        folder: where results are; None is where a checkout keeps them, and an installed package
            has none.

    Raises:
        InsightError: a file holds no result.
    """
    if folder is None:
        if not (_CHECKOUT / "pyproject.toml").exists():
            return []
        folder = _CHECKOUT / "benchmarks" / "results"
    return [time for path in sorted(folder.glob("*.json")) for time in _times(path)]


def _times(path: Path) -> Iterator[step_costs.TimeDocument]:
    result = _read(path)
    if result is None or result.hardware is None:
        return  # of another benchmark, or of the simulated device, whose times mean nothing
    for row in result.rows:
        if row.side in get_args(step_costs.Level) and row.comparison.startswith("mirror"):
            values = row.model_dump(exclude={"side"})
            yield step_costs.TimeDocument(
                file=path.name, hardware=result.hardware, level=row.side, **values
            )


def _read(path: Path) -> _Result | None:
    """Read a result; None where another benchmark wrote it."""
    try:
        text = path.read_bytes()
        if _Kind.model_validate_json(text).benchmark != _OF_LOOPS:
            return None
        return _Result.model_validate_json(text)
    except (OSError, ValidationError) as error:
        fault = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InsightError(
            "gpu-result",
            f"{str(path)!r} holds no result of a GPU: {fault}; a file that make gpu wrote was "
            "expected. Move it elsewhere, or name another folder with --results.",
        ) from error
