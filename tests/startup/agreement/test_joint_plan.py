"""From the statements of ranks to one plan, by hand and at random."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

import pytest
from torch import distributed as dist

from backend_caps import (
    BatchKind,
    Capabilities,
    Exact,
    Facts,
    HostSeqLens,
    Phase,
    Plan,
    ServerFlags,
)
from backend_caps.resolution.errors import PlanRefusedError
from backend_caps.resolution.rules import RuleSet
from backend_caps.resolution.selection import plan_for
from backend_caps.startup.agreement import Statement, require_same, statement_of
from backend_caps.startup.errors import RankFailedError, RanksDifferError
from tests.startup.agreement.cases import DIFFERENCES, FAILURES, HARMLESS, Case, drawn
from tests.startup.agreement.made import FLAGS, OPTS_OUT, READS, ROLES, registry
from tests.startup.agreement.processes import run_ranks
from tests.startup.agreement.together import agree_together

_REPLAYS = Capabilities(
    host_seq_lens=HostSeqLens.NONE,
    max_context_len_known=True,
    graph_replay={BatchKind.SINGLE_TOKEN_DECODE},
    roles=ROLES,
)


def _rank(
    name: str,
    capabilities: Capabilities,
    *,
    host: str = "node-a",
    folder: str = "/node",
    policy: str = "warn",
    facts: Facts | None = None,
    **flags: object,
) -> tuple[Plan, Statement]:
    """Make what a rank has and says that runs a backend and has flags of its own."""
    plan = plan_for(
        registry({name: capabilities}, folder=folder),
        FLAGS.updated({"attention_backend": name, **flags}),
        facts=facts,
        policy=policy,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )
    said = statement_of(plan, per_rank=frozenset({"attention_backend", *flags}))
    return plan, replace(said, host=host)


def _joint(*ranks: tuple[Plan, Statement]) -> list[Plan]:
    _, came = agree_together(ranks)
    plans = [own for own in came if isinstance(own, Plan)]
    assert len(plans) == len(ranks), came
    return plans


def test_need_of_one_rank_is_that_of_all() -> None:
    """The mirror is there on every rank where one reads it."""
    plans = _joint(_rank("acme", OPTS_OUT), _rank("needy", READS), _rank("acme", OPTS_OUT))

    assert [plan.needs_cpu_seq_lens for plan in plans] == [True, True, True]


def test_support_that_one_rank_lacks_no_rank_has() -> None:
    """Graphs are replayed on no rank where one cannot."""
    plans = _joint(_rank("acme", _REPLAYS), _rank("needy", OPTS_OUT))

    values = [plan["graph_replay", Phase.DECODE].value for plan in plans]
    assert values == [frozenset(), frozenset()]


def test_cause_that_not_all_have_names_rank_and_host() -> None:
    """Who forces a value is reported with the lowest rank that has it, and its machine."""
    acme, needy = _rank("acme", OPTS_OUT), _rank("needy", READS, host="node-b")

    plan, *_ = _joint(acme, acme, needy, needy)

    told = {(cause.name, cause.rank, cause.host) for cause in plan["host_seq_lens"].causes}
    assert told == {("acme", 0, "node-a"), ("needy", 2, "node-b")}


def test_cause_that_all_have_is_nobodys() -> None:
    """A rule that every rank applies carries no rank."""
    names = ("acme", "other")

    plan, _ = _joint(*(_rank(name, OPTS_OUT, enable_two_batch_overlap=True) for name in names))

    rules = [cause for cause in plan["host_seq_lens"].causes if cause.name == "two-batch-overlap"]
    assert [(cause.rank, cause.host) for cause in rules] == [(None, None)]


def test_own_causes_keep_the_line_of_their_declaration() -> None:
    """A path is a machine's own: this rank's causes keep theirs, and others' have none."""
    plan, _ = _joint(_rank("acme", OPTS_OUT), _rank("needy", READS))

    places = {
        cause.name: None if cause.source is None else cause.source.declared_at
        for cause in plan["host_seq_lens"].causes
    }
    assert places == {"acme": "/node/acme_caps.py:1", "needy": None}


def test_rank_keeps_its_own_uses_and_flags() -> None:
    """A joint plan is run by this rank: with its own backends."""
    own = _rank("acme", OPTS_OUT)[0]

    plan, _ = _joint(_rank("acme", OPTS_OUT), _rank("needy", READS))

    assert (plan.uses, plan.flags, plan.facts) == (own.uses, own.flags, own.facts)


def _without_a_common_page_size(policy: str) -> list[tuple[Plan, Statement]]:
    pages = {"acme": Exact(16), "other": Exact(64)}
    own = ((name, OPTS_OUT.model_copy(update={"page_sizes": size})) for name, size in pages.items())
    return [_rank(name, capabilities, policy=policy) for name, capabilities in own]


def test_ranks_without_a_common_page_size_have_that_problem() -> None:
    """What only the joined values show is a problem on every rank."""
    plans = _joint(*_without_a_common_page_size("warn"))

    codes = [[problem.code for problem in plan.problems] for plan in plans]
    assert [told.count("page-size-conflict") for told in codes] == [1, 1]


def test_strict_ranks_are_refused_together() -> None:
    """Under strict, a problem that only the joined values show stops all ranks."""
    _, came = agree_together(_without_a_common_page_size("strict"))

    assert {type(own) for own in came} == {PlanRefusedError}


def test_rank_that_refuses_the_joint_plan_alone_tells_the_others() -> None:
    """A flag of one rank alone may be at odds with what another brought; neither starts."""
    same_bits = OPTS_OUT.model_copy(
        update={"deterministic": True, "batch_invariant": True, "devices": frozenset({"cpu"})}
    )
    other_bits = same_bits.model_copy(update={"batch_invariant": False})
    strict = partial(_rank, facts=Facts(device="cpu"), policy="strict")
    ranks = [
        strict("acme", same_bits, enable_deterministic_inference=True),
        strict("other", other_bits, enable_deterministic_inference=False),
    ]

    _, (refused, told) = agree_together(ranks)

    assert isinstance(refused, PlanRefusedError)
    assert isinstance(told, RankFailedError)
    assert str(refused).removesuffix(".") in str(told)


def test_ranks_that_come_to_different_plans_are_refused() -> None:
    """A fault of ours that gives two ranks two joint plans starts neither."""
    acme, (plan, said) = _rank("acme", OPTS_OUT), _rank("needy", READS)
    at_odds = replace(plan, rules=replace(plan.rules, name="another"))

    _, came = agree_together([acme, (at_odds, said)])

    assert {type(own) for own in came} == {RanksDifferError}
    assert "joint plan is " in str(came[0])


def test_ranks_whose_auto_chose_differently_say_so() -> None:
    """Two machines may fit two backends; each rank learns which rank has which."""
    ranks = []
    flags = ServerFlags(attention_backend="auto", disable_piecewise_cuda_graph=True)
    for device in ("cpu", "cuda"):
        taken = {
            "of_cpu": OPTS_OUT.model_copy(update={"devices": frozenset({"cpu"})}),
            "of_cuda": OPTS_OUT.model_copy(update={"devices": frozenset({"cuda"})}),
        }
        plan = plan_for(
            registry(taken),
            flags,
            facts=Facts(device=device),
            rules=RuleSet.builtin("sglang-0.5.13"),
        )
        ranks.append((plan, statement_of(plan, given=flags)))

    plans = _joint(*ranks)

    for plan in plans:
        problems = {problem.code: problem.message for problem in plan.problems}
        assert "of_cpu on rank 0" in problems["ranks-chose-differently"]
        assert "of_cuda on rank 1" in problems["ranks-chose-differently"]


def test_what_is_a_machines_own_is_not_compared() -> None:
    """Ranks whose paths and hosts differ say the same."""
    _, one = _rank("acme", OPTS_OUT)
    _, other = _rank("acme", OPTS_OUT, folder="/elsewhere", host="node-b")

    assert one.mark == other.mark


def test_statement_survives_its_crossing() -> None:
    """What is heard is what was said."""
    plan, statement = _rank("acme", _REPLAYS)
    said = statement.at_length(plan)

    assert Statement.read(pickle.dumps(said)) == said


@pytest.mark.parametrize("spoken", [b"no pickle", pickle.dumps({"host": "node-b"})])
def test_statement_of_another_version_is_that_versions(spoken: bytes) -> None:
    """Who says it otherwise runs another release, and that is what differs."""
    plan, statement = _rank("acme", OPTS_OUT)
    own = replace(statement.at_length(plan), ranks=(0,))
    other = replace(Statement.read(spoken), ranks=(1,))

    with pytest.raises(RanksDifferError) as raised:
        require_same([own, other])

    assert [each.field for each in raised.value.differences][:1] == ["backend-caps"]


_NUM_CASES = 200
_SIZE = 4
_Outcome = tuple[str, str]
"""A kind, and its text: of an error, or `plan` and its digest."""


@pytest.fixture(scope="module")
def disagreeing() -> list[tuple[Case, list[_Outcome]]]:
    """What came of ranks that differ."""
    return _outcomes((*drawn(DIFFERENCES, _NUM_CASES - 30, 1), *drawn(FAILURES, 30, 2)))


@pytest.fixture(scope="module")
def agreeing() -> list[tuple[Case, list[_Outcome]]]:
    """What came of ranks that differ in what is their own."""
    return _outcomes((*drawn(HARMLESS, _NUM_CASES, 3),))


def _outcomes(cases: tuple[Case, ...]) -> list[tuple[Case, list[_Outcome]]]:
    came = run_ranks(_SIZE, partial(_all_of, cases))
    by_rank = [came[rank].value for rank in range(_SIZE)]
    told: list[list[_Outcome]] = [[] for _ in cases]
    for outcomes in by_rank:
        assert isinstance(outcomes, list), came
        for place, outcome in outcomes:
            told[place].append(outcome)
    return [*zip(cases, told, strict=True)]


def _all_of(cases: tuple[Case, ...], rank: int) -> list[tuple[int, _Outcome]]:
    groups = {size: dist.new_group(list(range(size))) for size in range(2, _SIZE + 1)}
    outcomes = []
    for place, case in enumerate(cases):
        if rank < case.size:
            group = groups[case.size]
            assert isinstance(group, dist.ProcessGroup), "this rank is a member"
            outcomes.append((place, _outcome(case, rank, group)))
    return outcomes


def _outcome(case: Case, rank: int, group: dist.ProcessGroup) -> _Outcome:
    try:
        plan = case.servers[rank].start(group)
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return type(error).__name__, str(error)
    return "plan", plan.digest


def test_cases_are_of_every_kind() -> None:
    """Each change is drawn, in groups of each size, on the first rank and on others."""
    cases = [*drawn(DIFFERENCES, _NUM_CASES - 30, 1)]

    assert {case.what for case in cases} == {*DIFFERENCES}
    assert {case.size for case in cases} == {2, 3, 4}
    assert {0 in case.others for case in cases} == {True, False}


@pytest.mark.slow
def test_no_difference_is_missed(disagreeing: list[tuple[Case, list[_Outcome]]]) -> None:
    """In none of the cases does a rank come to a plan."""
    assert len(disagreeing) == _NUM_CASES
    assert [case for case, told in disagreeing if any(kind == "plan" for kind, _ in told)] == []


def test_every_rank_learns_the_field_and_who_has_what(
    disagreeing: list[tuple[Case, list[_Outcome]]],
) -> None:
    """All ranks have one text, with the field and the numbers of both sides."""
    wrong = [
        (case.what, told)
        for case, told in disagreeing
        if case.what in DIFFERENCES and not _names(case, told)
    ]

    assert wrong == []


def _names(case: Case, told: list[_Outcome]) -> bool:
    (kind, text), *others = {*told}
    sides = (case.others, frozenset(range(case.size)) - case.others)
    return (
        not others
        and len(told) == case.size
        and kind == "RanksDifferError"
        and f"{case.what} is " in text
        and all(f"{rank}" in text for side in sides for rank in side)
    )


def test_every_rank_learns_who_failed_and_how(
    disagreeing: list[tuple[Case, list[_Outcome]]],
) -> None:
    """Who fails raises its own error; the others name it."""
    wrong = [
        (case.what, told)
        for case, told in disagreeing
        if case.what in FAILURES and not _tells_failure(case, told)
    ]

    assert wrong == []


def _tells_failure(case: Case, told: list[_Outcome]) -> bool:
    failed = {told[rank] for rank in case.others}
    left = {told[rank] for rank in range(case.size) if rank not in case.others}
    (own_kind, _), *_ = failed
    ((kind, text),) = left
    return (own_kind, kind) == (case.what, "RankFailedError") and case.what in text


@pytest.mark.slow
def test_nothing_is_seen_where_there_is_nothing(
    agreeing: list[tuple[Case, list[_Outcome]]],
) -> None:
    """What is a rank's own is never refused, and all ranks have one plan."""
    assert len(agreeing) == _NUM_CASES
    assert [(case.what, told) for case, told in agreeing if len({*told}) != 1] == []
    assert {told[0][0] for _, told in agreeing} == {"plan"}
