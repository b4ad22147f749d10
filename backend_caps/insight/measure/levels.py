"""What the mirror costs a step under a plan, and what it would cost at other levels.

A level is tried where the backends declare that they can do with it. What a rule forces is no
backend's need: the row below it says what the rule costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.errors import BackendCapsError
from backend_caps.insight.measure.errors import NotMeasuredError, StepFailedError
from backend_caps.insight.measure.steady import SteadySteps, steady_steps
from backend_caps.kit.models import ModelSizes, SmallModels, small_models
from backend_caps.resolution.errors import leaves_of
from backend_caps.resolution.plan import Cause, CauseKind, Plan, Resolved
from backend_caps.resolution.uses import ENGINE_DEFAULT
from backend_caps.runtime.speculative.settings import SpecSettings
from backend_caps.simulator import register

_Run = TypeVar("_Run")
_VOCAB = 128
"""Tokens of the small models: twice as many as the widest tree of any backend here."""
_LONGEST = 1 << 20
"""Their longest context, of which a run takes what it needs."""
_UNNAMED = (
    "no flag names the attention backend of every forward, and nobody runs here what an engine "
    "picks by itself; one whose code is installed was expected. Name it with --attention-backend."
)
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A level that was not run."""

    level: HostSeqLens
    reason: str
    """What needs more, or what stopped the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Steps at the levels that the backends can run with."""

    own: HostSeqLens
    """The plan's."""
    measured: Mapping[HostSeqLens, SteadySteps]
    left_out: tuple[LeftOut, ...]


def measured_levels(plan: Plan) -> Levels:
    """Run a plan's configuration at each level that its backends can run with.

    Where no lengths are relayed, the level does nothing, and the plan's own is the only one.

    Raises:
        NotMeasuredError: the configuration itself cannot be run here.
    """
    register()
    own = plan.host_seq_lens
    others = [level for level in HostSeqLens if plan.relays_speculation and level is not own]
    with ExitStack() as stack:
        models = _models(plan, stack)
        try:
            measured, left_out = at_levels(
                plan, (own, *others), lambda level: steady_steps(at_level(plan, level), models)
            )
        except BackendCapsError as error:
            raise NotMeasuredError(problem=str(error)) from error
    return Levels(own=own, measured=measured, left_out=left_out)


def at_levels(
    plan: Plan, levels: Iterable[HostSeqLens], run: Callable[[HostSeqLens], _Run]
) -> tuple[dict[HostSeqLens, _Run], tuple[LeftOut, ...]]:
    """Run something at each of some levels; say of those where it cannot why.

    Args:
        plan: whose backends say which levels they can run with.
        levels: in this order.
        run: what is run.

    Raises:
        BackendCapsError: it cannot be run at the plan's own level.
    """
    ran, left_out = dict[HostSeqLens, _Run](), list[LeftOut]()
    for level in levels:
        is_own = level is plan.host_seq_lens
        reason = None if is_own else reason_against(plan, level)
        try:
            if reason is None:
                ran[level] = _ran(run, level)
        except BackendCapsError as error:
            if is_own:
                raise
            reason = str(error)
        if reason is not None:
            left_out.append(LeftOut(level=level, reason=reason))
    return ran, tuple(left_out)


def _ran(run: Callable[[HostSeqLens], _Run], level: HostSeqLens) -> _Run:
    try:
        return run(level)
    except BackendCapsError:
        raise
    except Exception as error:  # a plugin raises what it likes
        raise _fault_of(error) from error


def _fault_of(error: Exception) -> BackendCapsError:
    """Make one fault of several, or of what a plugin raised."""
    faults: list[BackendCapsError] = []
    if isinstance(error, ExceptionGroup):
        with suppress(ExceptionGroup):  # a plugin's own is in it
            faults = [*leaves_of(error)]
    if len(faults) == 1:
        return faults[0]
    told = [str(fault).removesuffix(".") for fault in faults]
    problem = "; ".join(told) or f"{type(error).__name__}: {error}".rstrip(".")
    return StepFailedError(problem=problem)


def at_level(plan: Plan, level: HostSeqLens) -> Plan:
    """Put a level in the place of the plan's own; all else stays as it was decided."""

    def put(_: object, own: Resolved) -> Resolved:
        return replace(own, value=level) if own.capability == "host_seq_lens" else own

    return plan.with_values(put)


def _models(plan: Plan, stack: ExitStack) -> SmallModels:
    """Make models that suit what is known of the server's own."""
    if any(use.backend == ENGINE_DEFAULT for use in plan.uses):
        raise NotMeasuredError(problem=_UNNAMED)
    facts = plan.facts
    sizes = ModelSizes(
        vocab_size=_VOCAB,
        num_heads=2,
        num_kv_heads=1,
        head_size=facts.head_size or 16,
        max_position_embeddings=_LONGEST,
        dtype=_DTYPES.get(facts.dtype or "", torch.float32),
    )
    try:
        settings = SpecSettings.from_flags(plan.flags)
        algorithm = None if settings is None else settings.algorithm
        return stack.enter_context(small_models(algorithm, sizes=sizes))
    except (BackendCapsError, ExceptionGroup) as error:
        raise NotMeasuredError(problem=str(error)) from error


def reason_against(plan: Plan, level: HostSeqLens) -> str | None:
    """Say which backends need more than a level; None where none does."""
    needing = dict.fromkeys(_told(cause) for cause in _needing_more(plan, level))
    return "; ".join(needing) or None


def _needing_more(plan: Plan, level: HostSeqLens) -> Iterator[Cause]:
    for cause in plan["host_seq_lens"].causes:
        if cause.kind is CauseKind.BACKEND:
            assert isinstance(cause.value, HostSeqLens), "a cause has a level of the scale"
            if level < cause.value:
                yield cause


def _told(cause: Cause) -> str:
    return f"backend {cause.name!r} {cause.reason}"
