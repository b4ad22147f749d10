"""How an engine's batches run, and why, as parts of a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backend_caps.capability.kind import Phase, Role
from backend_caps.report.generate_documents import (
    GraphModeDocument,
    GraphsDocument,
    PhaseGraphsDocument,
)
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.graphs import (
    GraphChoice,
    GraphMode,
    Obstacle,
    Requested,
    kind_of,
    total_usage,
)


def graphs_document(engine: Engine) -> GraphsDocument:
    """Write down what an engine has captured, and how its batches run."""
    usage = total_usage(engine.graphs.values())
    return GraphsDocument(
        phases=[
            _phase(role, choice, engine.plan)
            for role, choices in shown_choices(engine).items()
            for choice in choices
        ],
        num_graphs=usage.num_graphs,
        pool_bytes=usage.pool_bytes,
        static_bytes=usage.static_bytes,
    )


def shown_choices(engine: Engine) -> Mapping[Role, Sequence[GraphChoice]]:
    """List the choices about batches that there are, by role."""
    flags = engine.plan.flags
    return {
        role: [own for own in choices if own.kind is kind_of(flags, role, own.phase)]
        for role, choices in engine.configuration.graph_choices.items()
    }


def _phase(role: Role, choice: GraphChoice, plan: Plan) -> PhaseGraphsDocument:
    phase, halves = choice.phase, choice.two_batch
    return PhaseGraphsDocument(
        role=role.value,
        phase=phase.value,
        kind=choice.kind.value,
        supported={mode.value: _supported(choice, mode) for mode in GraphMode},
        requested=choice.requested.request.value,
        requested_because=choice.requested.cause,
        effective=choice.effective.value,
        refused=refused_words(choice),
        in_halves=halves.runs_halves if plan.flags.enable_two_batch_overlap else None,
        in_halves_because=halves.because,
    )


def refused_words(choice: GraphChoice) -> dict[str, list[str]]:
    """Say what keeps batches from each better mode than the one that they run in."""
    return {
        mode.value: [*_words(choice.phase, mode, stands)] for mode, stands in choice.refused.items()
    }


def _supported(choice: GraphChoice, mode: GraphMode) -> GraphModeDocument:
    stands = choice.obstacles.get(mode, ())
    words = _words(choice.phase, mode, stands) if stands else choice.supported_because(mode)
    return GraphModeDocument(supported=mode in choice.supported, because=[*words])


def _words(phase: Phase, mode: GraphMode, stands: Iterable[Obstacle | Requested]) -> Sequence[str]:
    """Say what keeps batches from a mode, sizes by the option that would name them."""
    return [_word(phase, mode, own) for own in stands]


def _word(phase: Phase, mode: GraphMode, stands: Obstacle | Requested) -> str:
    if isinstance(stands, Requested):
        return stands.cause
    if stands is not Obstacle.SIZES:
        return stands.reason
    by_tokens = mode is GraphMode.PIECEWISE or phase is Phase.PREFILL
    return f"--graph-{'token-counts' if by_tokens else 'batch-sizes'} names none"
