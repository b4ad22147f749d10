from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from backend_caps import Given, Origin, Part, When, resolve
from backend_caps import SharedReadsEnd as End
from backend_caps.capability.backend import Backend
from backend_caps.capability.kind import ANY, Phase, Role, Scope
from backend_caps.capability.sets import Conflict, Exact, MultipleOf, Unchecked
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    NO_LIMIT,
    BatchKind,
    Capabilities,
    GraphMetadata,
    HostSeqLens,
)
from backend_caps.resolution.plan import Cause, CauseKind, Policy
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.uses import Use
from tests.unit.building import (
    OPTS_OUT,
    READS,
    RULES_13,
    SPECULATING,
    error_of,
    errors_of,
    flags,
    installed,
    missing_use,
    named,
    shipped,
    use,
)

_EXACT, _BOUND, _NONE = HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND, HostSeqLens.NONE
_BOUNDED = Capabilities(host_seq_lens=_BOUND, max_context_len_known=True)
_ALL_BATCHES = frozenset(BatchKind)
_PREFILL, _DECODE, _VERIFY = Phase.PREFILL, Phase.DECODE, Phase.VERIFY


@pytest.mark.parametrize(
    ("uses", "value"),
    [
        pytest.param([use("a", OPTS_OUT)], _NONE, id="one opts out"),
        pytest.param([use("a", OPTS_OUT), use("b", _BOUNDED)], _BOUND, id="one needs a bound"),
        pytest.param(
            [use("a", OPTS_OUT), use("b", _BOUNDED), use("c", READS)], _EXACT, id="one reads"
        ),
        pytest.param([use("a", OPTS_OUT), use("b")], _EXACT, id="one is undeclared"),
        pytest.param([use("a", OPTS_OUT), missing_use("b")], _EXACT, id="one is missing"),
    ],
)
def test_resolve_joins_needs_to_the_most_that_any_use_needs(
    uses: list[Use], value: HostSeqLens
) -> None:
    """The mirror is as exact as the most demanding use."""
    assert resolve(uses, flags(SPECULATING))["host_seq_lens"].value is value


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("phase", Phase)
def test_resolve_counts_the_relay_loop_for_the_mirror(role: Role, phase: Phase) -> None:
    """At a prefill the scheduler knows the lengths, so that a reading backend counts elsewhere."""
    uses = [use("a", OPTS_OUT), use("b", READS, role=role, phase=phase)]

    assert resolve(uses, flags(SPECULATING)).needs_cpu_seq_lens is (phase is not _PREFILL)


_VERIFIES_8 = use("a", Capabilities(max_speculative_topk=8), phase=_VERIFY)
_DRAFTS_4 = use("b", Capabilities(max_speculative_topk=4, roles=set(Role)), role=Role.DRAFT)


@pytest.mark.parametrize(
    ("uses", "limit"),
    [
        pytest.param([_VERIFIES_8], 8, id="one"),
        pytest.param([_VERIFIES_8, _DRAFTS_4], 4, id="the smaller"),
        pytest.param([use("a", phase=_VERIFY)], 1, id="undeclared"),
        pytest.param([use("a", Capabilities(max_speculative_topk=4))], NO_LIMIT, id="plain decode"),
    ],
)
def test_resolve_limits_the_draft_tree_by_who_runs_it(uses: list[Use], limit: int) -> None:
    """The width of the draft tree is limited by verify and draft alone."""
    assert resolve(uses, flags(SPECULATING))["max_speculative_topk"].value == limit


@pytest.mark.parametrize(
    ("capability", "decode", "prefill", "best"),
    [
        ("graph_replay", frozenset({BatchKind.SINGLE_TOKEN_DECODE}), frozenset(), _ALL_BATCHES),
        ("graph_metadata", GraphMetadata.DEVICE, GraphMetadata.HOST, GraphMetadata.IN_GRAPH),
        ("sync_free_prepare", True, False, True),
        ("shared_reads_end", End.IN_REPLAY, End.UNKNOWN, End.PRE_REPLAY),
    ],
)
def test_resolve_keeps_one_value_a_phase(
    capability: str, decode: object, prefill: object, best: object
) -> None:
    """A prefill backend takes nothing from decode; a phase that nobody runs has its best value."""
    uses = [
        use("a", Capabilities.model_validate({capability: decode}), phase=_DECODE),
        use("b", phase=_PREFILL),
    ]

    plan = resolve(uses, flags())

    values = [plan[capability, phase].value for phase in (_PREFILL, _DECODE, _VERIFY)]
    assert values == [prefill, decode, best]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        pytest.param([ANY], ANY, id="any"),
        pytest.param([MultipleOf(16), Exact(64)], Exact(64), id="a value"),
        pytest.param([MultipleOf(16), None], Unchecked(MultipleOf(16)), id="one does not say"),
        pytest.param([Exact(16), ANY, Exact(64)], Conflict(("b0", "b2")), id="a conflict"),
        pytest.param(
            [Exact(16), Exact(64), None], Conflict(("b0", "b1", "b2")), id="and one does not say"
        ),
    ],
)
def test_resolve_joins_page_sizes_to_a_value_or_a_conflict_with_owners(
    declared: Sequence[object], value: object
) -> None:
    """Page sizes intersect; a conflict names everyone who restricts them, in sorted order."""
    said = [{} if sizes is None else {"page_sizes": sizes} for sizes in declared]
    uses = [use(f"b{at}", Capabilities.model_validate(own)) for at, own in enumerate(said)]

    assert resolve(uses, flags())["page_sizes"].value == value


def test_resolve_keeps_every_cause_the_deciding_ones_first() -> None:
    """All contributions are kept: who decides, then who takes something away, then the rest."""
    uses = [use("d", OPTS_OUT), use("b", READS), use("c", _BOUNDED), use("a", OPTS_OUT)]
    line = "--speculative-algorithm EAGLE --enable-two-batch-overlap"

    plan = resolve(uses, flags(line), rules=RULES_13)

    causes = [(c.kind.value, c.name, c.value) for c in plan["host_seq_lens"].causes]
    assert causes == [
        ("backend", "b", _EXACT),
        ("rule", "piecewise-cuda-graph", _EXACT),
        ("rule", "two-batch-overlap", _EXACT),
        ("backend", "c", _BOUND),
        ("backend", "a", _NONE),
        ("backend", "d", _NONE),
    ]


def test_resolve_gives_a_cause_its_use_and_its_words() -> None:
    """A cause says who, in which role and phase, where it is declared, and what it says."""
    backends = named(installed("fa3", READS), installed("hybrid", parts=[Part("fa3")]))
    read = flags(f"{SPECULATING} --attention-backend hybrid --speculative-algorithm NGRAM")

    plan = resolve(uses_of(read, backends), read)

    assert plan["host_seq_lens"].causes[0] == Cause(
        kind=CauseKind.BACKEND,
        name="fa3",
        role=Role.TARGET,
        phase=_DECODE,
        value=_EXACT,
        reason="declares host_seq_lens=exact",
        origin=Origin.DECLARED,
        source=shipped("fa3"),
        via=("hybrid",),
    )


def test_resolve_gives_missing_backends_the_worst_values() -> None:
    """A backend that was not read needs everything and supports nothing, and says why."""
    plan = resolve([missing_use("fa3")], flags())

    told = {
        (resolved.capability, cause.value, cause.origin, cause.reason)
        for phase, resolved in plan.values()
        for cause in resolved.causes
        if cause.kind is CauseKind.BACKEND and phase in (None, _DECODE)
    }
    assert told == {
        (name, kind.worst, Origin.MISSING, "no fa3.")
        for name, kind in CAPABILITIES.items()
        if kind.scope is not Scope.USE and name != "max_speculative_topk"
    }


def test_resolve_sorts_uses() -> None:
    """A plan holds its uses in one order, whatever order they came in."""
    uses = [use("b"), use("a", phase=_PREFILL), use("a")]

    plan = resolve(uses, flags())

    ordered = [(each.phase.value, each.backend) for each in plan.uses]
    assert ordered == [("decode", "a"), ("decode", "b"), ("prefill", "a")]


_NO_DRAFTS = Capabilities(roles={Role.TARGET})
_NO_TREE = When(given=Given(tp_size={1}), capabilities=_NO_DRAFTS, reason="no tree kernel")


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(installed("fa3", _NO_DRAFTS), id="at all"),
        pytest.param(installed("fa3", OPTS_OUT, conditions=[_NO_TREE]), id="under a condition"),
    ],
)
def test_resolve_refuses_roles_that_a_backend_does_not_take(backend: Backend) -> None:
    """Uses outside the declared roles are errors that name slot and backend, once a slot."""
    read = flags("--attention-backend fa3 --speculative-algorithm EAGLE")

    message, refused = errors_of(lambda: resolve(uses_of(read, named(backend)), read))

    told = (
        "backend 'fa3' does not take the role {!r} (--attention-backend); "
        "it takes: target. Name another backend for that role."
    )
    assert message == "roles: 2 faults"
    assert refused == [told.format("draft"), told.format("draft_extend")]


def test_resolve_takes_the_uses_of_a_composite() -> None:
    """A composite from the registry resolves: its own needs, and its parts'."""
    hybrid = installed("hybrid", READS, parts=[Part("fa3")])
    read = flags("--attention-backend hybrid --disable-piecewise-cuda-graph")

    plan = resolve(uses_of(read, named(hybrid, installed("fa3", OPTS_OUT))), read)

    causes = [(cause.name, cause.value) for cause in plan["host_seq_lens"].causes]
    assert causes == [("hybrid", _EXACT), ("fa3", _NONE)]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        pytest.param(Capabilities(host_seq_lens=_NONE), _NONE, id="towards better"),
        pytest.param(Capabilities(needs_cpu_seq_lens=True), _EXACT, id="towards worse"),
        pytest.param(Capabilities(), _BOUND, id="of nothing"),
    ],
)
def test_override_replaces_the_joined_value(override: Capabilities, value: HostSeqLens) -> None:
    """The operator's word counts, in both directions."""
    plan = resolve([use("a", _BOUNDED)], flags(SPECULATING), unsafe_override=override)

    assert plan["host_seq_lens"].value is value


def test_override_is_the_first_cause() -> None:
    """An override is recorded as a cause, before what it overrules, and kept on the plan."""
    override = Capabilities(host_seq_lens=_NONE)

    plan = resolve([use("a", READS)], flags(SPECULATING), unsafe_override=override)

    first, second = plan["host_seq_lens"].causes
    cause = Cause(
        kind=CauseKind.OVERRIDE,
        name="host_seq_lens",
        value=_NONE,
        reason="unsafe_override: the operator put it in place of the joined value",
        origin=Origin.OVERRIDDEN,
    )
    assert (first, second.name, plan.overrides) == (cause, "a", (("host_seq_lens", _NONE),))


def test_override_of_a_phase_value_counts_in_every_phase() -> None:
    """An override has no phase, and so holds in each."""
    override = Capabilities(sync_free_prepare=True)

    plan = resolve([use()], flags(), unsafe_override=override)

    assert {plan["sync_free_prepare", phase].value for phase in Phase} == {True}


_FITS = Capabilities(needs_cpu_seq_lens=True, two_batch_overlap=True)


@pytest.mark.parametrize("policy", [Policy.WARN, Policy.QUIET, "warn", "quiet"])
def test_policy_keeps_problems_as_data(policy: Policy | str) -> None:
    """Unless the policy is strict, problems stand on the plan and raise nothing."""
    plan = resolve([missing_use()], flags(), policy=policy)

    assert [found.code for found in plan.problems] == ["backend-missing"]
    assert plan.policy is Policy(policy)


@pytest.mark.parametrize("policy", [Policy.STRICT, "strict"])
def test_strict_policy_raises_a_problem(policy: Policy | str) -> None:
    """Under strict a problem is an error: what is wrong, and what to do."""
    told = error_of(lambda: resolve([missing_use()], flags(), policy=policy))

    assert told == "no fa3. Install it."


def test_strict_policy_raises_every_problem_at_once() -> None:
    """Several problems of one plan come as one group, sorted."""
    uses = [missing_use("fa3"), use("mla", Capabilities(devices={"xpu"}))]

    group = errors_of(lambda: resolve(uses, flags("--device cuda"), policy="strict"))

    other = "backend 'mla' takes device xpu; here it is cuda. Use another backend, or device xpu."
    assert group == ("plan refused (strict): 2 faults", ["no fa3. Install it.", other])


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param({"devices": {"cuda"}}, "device", id="a device"),
        pytest.param({"dtypes": {"int8"}}, "dtype", id="a dtype"),
        pytest.param({"head_sizes": Exact(64)}, "head_size", id="a head"),
    ],
)
def test_strict_policy_refuses_what_nobody_said(
    declared: Mapping[str, object], expected: str
) -> None:
    """Under strict alone, a backend that restricts a fact which is not known is refused."""
    uses = [use("a", _FITS.model_copy(update=declared))]

    told = error_of(lambda: resolve(uses, flags(), policy="strict"))

    say = f"Say what it is, such as by --fact {expected}=VALUE."
    assert told.startswith(f"backend 'a' takes {expected} ")
    assert told.endswith(f"; here it is not known. {say}")
    assert resolve(uses, flags(), policy="quiet").problems == ()


def test_strict_policy_takes_a_plan_without_problems() -> None:
    """Nothing wrong is no error, though the values be the worst."""
    plan = resolve([use("a", _FITS)], flags(), policy="strict")

    assert (plan.problems, plan.policy) == ((), Policy.STRICT)
