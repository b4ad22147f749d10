"""How an engine's batches run, and why: the part of a document that several commands show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backend_caps.capability.kind import Phase, Role
from backend_caps.report.generate_documents import (
    GraphModeDocument,
    GraphsDocument,
    PhaseGraphsDocument,
)
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
    in_halves = engine.plan.flags.enable_two_batch_overlap
    return GraphsDocument(
        phases=[
            PhaseGraphsDocument(
                role=role.value,
                phase=choice.phase.value,
                kind=choice.kind.value,
                supported={mode.value: _supported(choice, mode) for mode in GraphMode},
                requested=choice.requested.request.value,
                requested_because=choice.requested.cause,
                effective=choice.effective.value,
                refused=refused_because(choice),
                in_halves=choice.two_batch.runs_halves if in_halves else None,
                in_halves_because=choice.two_batch.because,
            )
            for role, choices in effective_choices(engine).items()
            for choice in choices
        ],
        num_graphs=usage.num_graphs,
        pool_bytes=usage.pool_bytes,
        static_bytes=usage.static_bytes,
    )


def effective_choices(engine: Engine) -> Mapping[Role, Sequence[GraphChoice]]:
    """List the choices for kinds of batch that the engine's flags lead to, by role."""
    flags = engine.plan.flags
    return {
        role: [own for own in choices if own.kind is kind_of(flags, role, own.phase)]
        for role, choices in engine.configuration.graph_choices.items()
    }


def refused_because(choice: GraphChoice) -> dict[str, list[str]]:
    """List what keeps batches from each better mode than the one that they run in."""
    return {
        mode.value: _reasons(choice.phase, mode, against)
        for mode, against in choice.refused.items()
    }


def _supported(choice: GraphChoice, mode: GraphMode) -> GraphModeDocument:
    against = choice.obstacles.get(mode, ())
    because = _reasons(choice.phase, mode, against) or [*choice.supported_because(mode)]
    return GraphModeDocument(supported=mode in choice.supported, because=because)


def _reasons(phase: Phase, mode: GraphMode, against: Iterable[Obstacle | Requested]) -> list[str]:
    """Write what keeps batches from a mode; of missing sizes, the option that would name them."""
    by_tokens = mode is GraphMode.PIECEWISE or phase is Phase.PREFILL
    no_sizes = f"--graph-{'token-counts' if by_tokens else 'batch-sizes'} names none"
    return [
        own.cause
        if isinstance(own, Requested)
        else (no_sizes if own is Obstacle.SIZES else own.reason)
        for own in against
    ]
