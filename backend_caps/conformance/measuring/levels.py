"""What the mirror costs a step under a plan, and what it would cost at other levels.

A level is tried where the backends declare that they can do with it. What a rule forces is no
backend's need: the row below it says what the rule costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.conformance.measuring.errors import NotMeasuredError
from backend_caps.conformance.measuring.models import ModelSizes, SmallModels, small_models
from backend_caps.conformance.measuring.steady import SteadySteps, steady_steps
from backend_caps.conformance.simulator import register
from backend_caps.errors import BackendCapsError
from backend_caps.resolution.plan import Cause, CauseKind, Plan, Policy
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.uses import ENGINE_DEFAULT
from backend_caps.runtime.speculative.settings import SpecSettings

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
    """A level that was not measured."""

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
    own = plan["host_seq_lens"].value
    assert isinstance(own, HostSeqLens), "a plan's level is one of the scale"
    levels = [level for level in HostSeqLens if plan.relays_speculation and level is not own]
    with ExitStack() as stack:
        models = _models(plan, stack)
        measured = {own: _measured(plan, models)}
        left_out = []
        for level in levels:
            reason = reason_against(plan, level)
            try:
                if reason is None:
                    measured[level] = _measured(_at(plan, level), models)
            except NotMeasuredError as error:
                reason = error.problem
            if reason is not None:
                left_out.append(LeftOut(level=level, reason=reason))
    return Levels(own=own, measured=measured, left_out=tuple(left_out))


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


def _measured(plan: Plan, models: SmallModels) -> SteadySteps:
    try:
        return steady_steps(plan, models)
    except (BackendCapsError, ExceptionGroup) as error:
        raise NotMeasuredError(problem=str(error)) from error
    except Exception as error:  # a plugin raises what it likes
        told = f"{type(error).__name__}: {error}".rstrip(".")
        problem = f"a step raised {told}; a backend that runs on torch's operators was expected."
        raise NotMeasuredError(problem=f"{problem} Fix it, or name another.") from error


def _at(plan: Plan, level: HostSeqLens) -> Plan:
    """Resolve the plan once more, with another level in the place of its own."""
    return resolve(
        plan.uses,
        plan.flags,
        rules=plan.rules,
        facts=plan.facts,
        policy=Policy.QUIET,
        unsafe_override=plan.unsafe_override.model_copy(update={"host_seq_lens": level}),
    )


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
