"""The combination table, whole, and how flags and facts come to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest
from torch_native_caps import TORCH_PADDED

from backend_caps import UNDECLARED, BatchKind, Phase, Plan, Role, ServerFlags, Use, resolve
from backend_caps.capability.kind import Undeclared
from backend_caps.relay import DeviceTraits
from backend_caps.resolution.rules import RuleSet
from backend_caps.startup.graph_choice import (
    KIND_OF_PHASE,
    GraphChoice,
    GraphSizes,
    Obstacle,
    choose_graphs,
    halved_phases,
)
from backend_caps.startup.graph_modes import GraphMode, mixed_buckets, uniform_buckets
from tests.runtime.graphs.rig import SIMULATED, uses_of

FULL, PIECEWISE, EAGER = GraphMode
SINGLE, UNIFORM, MIXED = BatchKind
NO_GRAPHS = replace(SIMULATED, has_graphs=False)
SIZES = GraphSizes(
    buckets={
        Phase.PREFILL: mixed_buckets(4, (8,)),
        Phase.DECODE: uniform_buckets((4,)),
        Phase.VERIFY: uniform_buckets((4,), 3),
    },
    token_counts=(16,),
)
NO_FLAGS: tuple[str, ...] = ()
DISABLED = ("--disable-cuda-graph",)
NO_PIECES = ("--disable-piecewise-cuda-graph",)
ENFORCED = ("--enforce-piecewise-cuda-graph",)
SPECULATES = ("--speculative-algorithm", "NGRAM")
HALVES = ("--enable-two-batch-overlap",)
SPECULATION, TWO_BATCH = Obstacle.SPECULATION, Obstacle.TWO_BATCH


def uses_declaring(**capabilities: object) -> list[Use]:
    """Use a backend in every phase that declares these capabilities otherwise."""
    own = TORCH_PADDED.capabilities.model_copy(update=capabilities)
    return uses_of("own", TORCH_PADDED.model_copy(update={"capabilities": own}), Phase)


def resolved(uses: Iterable[Use], *argv: str, policy: str = "quiet") -> Plan:
    """Resolve a server of these uses."""
    flags = ServerFlags.from_argv(["--attention-backend", "own", *argv])
    return resolve(uses, flags, policy=policy, rules=RuleSet.builtin("sglang-0.5.13"))


def plan_of(*argv: str, declared: frozenset[BatchKind] = frozenset(BatchKind)) -> Plan:
    """Resolve a server with a backend whose full graphs may be replayed for these kinds."""
    return resolved(uses_declaring(graph_replay=declared), *argv)


def choice_of(
    phase: Phase,
    *argv: str,
    declared: frozenset[BatchKind] = frozenset(BatchKind),
    traits: DeviceTraits = SIMULATED,
) -> GraphChoice:
    """Choose for the batches that a phase has."""
    choices = choose_graphs(plan_of(*argv, declared=declared), traits, SIZES)
    return {(own.phase, own.kind): own for own in choices}[phase, KIND_OF_PHASE[phase]]


# By row: the flags. By column: a kind that the backend declares, and one that it does not, on a
# device with graphs; then both on a device without.
USUAL = {
    NO_FLAGS: (FULL, PIECEWISE, EAGER, EAGER),
    NO_PIECES: (FULL, EAGER, EAGER, EAGER),
    ENFORCED: (FULL, PIECEWISE, EAGER, EAGER),
    DISABLED: (EAGER, EAGER, EAGER, EAGER),
}
OF_PROMPTS = {**USUAL, ENFORCED: (PIECEWISE, PIECEWISE, EAGER, EAGER)}
TABLE = {SINGLE: USUAL, UNIFORM: USUAL, MIXED: OF_PROMPTS}


def situations(declares: bool) -> Iterator[tuple[BatchKind, frozenset[BatchKind]]]:
    """Yield each kind with every set of kinds that holds it, or every set that does not."""
    for kind, bits in product(BatchKind, product((False, True), repeat=len(BatchKind))):
        chosen = zip(BatchKind, bits, strict=True)
        declared = frozenset(own for own, is_there in chosen if is_there)
        if (kind in declared) is declares:
            yield kind, declared


@pytest.mark.parametrize("argv", [NO_FLAGS, NO_PIECES, ENFORCED, DISABLED], ids=str)
@pytest.mark.parametrize("has_graphs", [True, False], ids=["graphs", "no graphs"])
@pytest.mark.parametrize("declares", [True, False], ids=["declared", "not declared"])
def test_table_of_capability_request_and_kind(
    argv: tuple[str, ...], *, has_graphs: bool, declares: bool
) -> None:
    """Every set of kinds, every request and every kind of batch has the mode of the table."""
    column = 2 * (not has_graphs) + (not declares)
    phases = {kind: phase for phase, kind in KIND_OF_PHASE.items()}
    traits = SIMULATED if has_graphs else NO_GRAPHS

    for kind, declared in situations(declares):
        choice = choice_of(phases[kind], *argv, declared=declared, traits=traits)

        assert choice.effective is TABLE[kind][argv][column]


@pytest.mark.parametrize(
    ("argv", "phase", "expected"),
    [
        ((), Phase.PREFILL, "full or piecewise"),
        (DISABLED, Phase.DECODE, "eager"),
        (NO_PIECES, Phase.VERIFY, "full"),
        (ENFORCED, Phase.PREFILL, "piecewise"),
        (ENFORCED, Phase.DECODE, "full or piecewise"),
        ((*ENFORCED, *DISABLED), Phase.PREFILL, "piecewise"),
        ((*ENFORCED, *DISABLED), Phase.DECODE, "eager"),
    ],
)
def test_request_is_what_the_flags_say(argv: tuple[str, ...], phase: Phase, expected: str) -> None:
    """Each flag asks for a mode, in the phases that it is about."""
    assert choice_of(phase, *argv).requested.request.value == expected


@pytest.mark.parametrize(
    ("argv", "phase", "full", "pieces"),
    [
        ((), Phase.DECODE, (), ()),
        (SPECULATES, Phase.VERIFY, (), ()),
        (SPECULATES, Phase.PREFILL, (SPECULATION,), ()),
        (SPECULATES, Phase.DECODE, (SPECULATION,), (SPECULATION,)),
        (HALVES, Phase.PREFILL, (TWO_BATCH,), (TWO_BATCH,)),
        (HALVES, Phase.DECODE, (), (TWO_BATCH,)),
        ((*HALVES, *ENFORCED), Phase.PREFILL, (TWO_BATCH,), ()),
    ],
)
def test_obstacles_are_of_a_mode(
    argv: tuple[str, ...], phase: Phase, full: tuple[Obstacle, ...], pieces: tuple[Obstacle, ...]
) -> None:
    """What keeps a batch from one mode need not keep it from the other."""
    assert choice_of(phase, *argv).obstacles == {FULL: full, PIECEWISE: pieces}


def test_refused_names_flag_and_obstacles() -> None:
    """Each better mode says what keeps it from being the effective one."""
    choice = choice_of(Phase.DECODE, *NO_PIECES, *HALVES, declared=frozenset())

    assert choice.refused == {FULL: (Obstacle.BACKEND,), PIECEWISE: (choice.requested, TWO_BATCH)}


CAPTURED_HALVES = (True, "a captured graph has both halves")
EAGER_HALVES = (True, "both halves run eagerly")
PIECES = "switched off: --enforce-piecewise-cuda-graph is given, and pieces hold whole batches"
NEVER_RUN = "with speculation no plain decode runs"


@pytest.mark.parametrize(
    ("argv", "phase", "declared", "mode", "expected"),
    [
        (HALVES, Phase.VERIFY, BatchKind, FULL, CAPTURED_HALVES),
        (HALVES, Phase.DECODE, (), EAGER, EAGER_HALVES),
        (HALVES, Phase.PREFILL, BatchKind, EAGER, EAGER_HALVES),
        ((*HALVES, *ENFORCED), Phase.PREFILL, BatchKind, PIECEWISE, (False, PIECES)),
        ((*HALVES, *SPECULATES), Phase.DECODE, BatchKind, EAGER, (False, NEVER_RUN)),
        ((), Phase.DECODE, BatchKind, FULL, (False, "--enable-two-batch-overlap is not given")),
    ],
)
def test_choice_says_whether_batches_run_in_halves(
    argv: tuple[str, ...],
    phase: Phase,
    declared: Iterable[BatchKind],
    mode: GraphMode,
    expected: tuple[bool, str],
) -> None:
    """The flag runs batches in halves, captured or eager, unless another flag asks for pieces."""
    choice = choice_of(phase, *argv, declared=frozenset(declared))

    two_batch = choice.two_batch
    assert (choice.effective, two_batch.runs_halves, two_batch.because) == (mode, *expected)


@pytest.mark.parametrize("declared", [False, UNDECLARED], ids=["no", "undeclared"])
def test_backend_that_cannot_switches_halves_off(declared: bool | Undeclared) -> None:
    """Every batch runs whole, in the mode that it has without the flag, and says why."""
    plan = resolved(uses_declaring(two_batch_overlap=declared), *HALVES)

    choices = choose_graphs(plan, SIMULATED, SIZES)

    assert halved_phases(choices) == frozenset()
    whole = choose_graphs(plan_of(), SIMULATED, SIZES)
    assert [own.effective for own in choices] == [own.effective for own in whole]
    assert {own.two_batch.because for own in choices} == {
        "switched off: two_batch_overlap is not supported by 'own'"
    }
    assert "two-batch-overlap-unsupported" in {own.code for own in plan.problems}


def test_draft_s_backend_that_cannot_leaves_the_target_s_halves() -> None:
    """Drafts run whole anyway, so their backend's word is not about the target's batches."""
    drafts = (
        replace(use, role=Role.DRAFT, backend="other")
        for use in uses_declaring(two_batch_overlap=False)
    )
    plan = resolved((*uses_declaring(), *drafts), *HALVES, *SPECULATES)

    choices = choose_graphs(plan, SIMULATED, SIZES)

    assert plan["two_batch_overlap"].value is False
    assert halved_phases(choices) == {Phase.PREFILL, Phase.VERIFY}


def test_backend_that_cannot_is_refused_under_strict() -> None:
    """Who asks for a plan without problems gets none that switches halves off."""
    uses = uses_declaring(two_batch_overlap=False)

    with pytest.raises(ExceptionGroup) as caught:
        resolved(uses, *HALVES, policy="strict")

    assert "not every backend may run under it: 'own'" in " ".join(
        map(str, caught.value.exceptions)
    )


def test_choice_looks_at_the_phases_that_a_role_has() -> None:
    """Every kind is decided on in each phase with a backend, and nowhere else."""
    plan = resolved(uses_of("own", TORCH_PADDED, [Phase.PREFILL, Phase.DECODE]))

    choices = choose_graphs(plan, SIMULATED, GraphSizes())

    assert [own.phase for own in choices] == [Phase.PREFILL] * 3 + [Phase.DECODE] * 3


def test_choice_of_a_kind_that_a_phase_never_has_is_eager() -> None:
    """Token counts are sizes of the batches that there are, so nothing else is captured."""
    choices = choose_graphs(plan_of(), SIMULATED, SIZES)

    others = [own for own in choices if own.kind is not KIND_OF_PHASE[own.phase]]

    assert {own.effective for own in others} == {EAGER}
