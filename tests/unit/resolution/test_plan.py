from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

from backend_caps.capability.backend import Problem
from backend_caps.capability.kind import Phase, Role, Scope
from backend_caps.capability.provenance import Origin
from backend_caps.capability.scale import ANY
from backend_caps.capability.sizes import Conflict, Exact, MultipleOf
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities, HostSeqLens
from backend_caps.resolution.plan import (
    Cause,
    CauseKind,
    Plan,
    resolved_from,
)
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import Effect, RuleSet
from backend_caps.resolution.uses import Use
from tests.unit.building import (
    OPTS_OUT,
    READS,
    SPECULATING,
    at_rank,
    error_of,
    flags,
    missing_use,
    use,
)

_EXACT, _BOUND, _NONE = HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND, HostSeqLens.NONE
_BOUNDED = Capabilities(host_seq_lens=_BOUND, max_context_len_known=True)
_NO_EFFECT = Effect(active=True, text="")
_HELD = ", ".join(name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE)


def _plan(
    capabilities: Capabilities = OPTS_OUT, line: str = SPECULATING, *, backend: str = "fa3"
) -> Plan:
    return resolve(
        [use(backend, capabilities)], flags(line), rules=RuleSet.builtin("sglang-0.5.13")
    )


def _cause(name: str, value: object, kind: CauseKind = CauseKind.BACKEND) -> Cause:
    return Cause(kind=kind, name=name, value=value, reason="why", origin=Origin.DECLARED)


def test_plan_is_indexed_by_a_capability_of_the_server() -> None:
    """A server's capability is looked up by its name."""
    plan = _plan(READS)

    value = plan["host_seq_lens"]

    assert (value.capability, value.value) == ("host_seq_lens", _EXACT)


def test_plan_is_indexed_by_a_capability_and_a_phase() -> None:
    """A phase's capability is looked up by its name and the phase."""
    plan = _plan(Capabilities(sync_free_prepare=False))

    values = [plan["sync_free_prepare", phase].value for phase in (Phase.DECODE, Phase.PREFILL)]

    assert values == [False, True]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        pytest.param(
            "host_seq_len", f"a plan has no 'host_seq_len'; it has: {_HELD}", id="unknown"
        ),
        pytest.param("devices", f"a plan has no 'devices'; it has: {_HELD}", id="not joined"),
        pytest.param(
            ("roles", Phase.DECODE), f"a plan has no 'roles'; it has: {_HELD}", id="not a phase's"
        ),
        pytest.param(
            "graph_replay",
            "'graph_replay' has scope phase; write plan['graph_replay', Phase.DECODE]",
            id="without its phase",
        ),
        pytest.param(
            ("host_seq_lens", Phase.DECODE),
            "'host_seq_lens' has scope server; write plan['host_seq_lens']",
            id="with a phase",
        ),
    ],
)
def test_plan_tells_how_it_is_indexed(key: str | tuple[str, Phase], text: str) -> None:
    """A wrong key is an error that says what there is, or how it is written."""
    plan = _plan()

    with pytest.raises(KeyError) as raised:
        plan[key]

    assert raised.value.args == (text,)


@pytest.mark.parametrize(
    ("capabilities", "needs"),
    [
        pytest.param(READS, True, id="EXACT"),
        pytest.param(_BOUNDED, False, id="UPPER_BOUND"),
        pytest.param(OPTS_OUT, False, id="NONE"),
    ],
)
def test_plan_needs_cpu_seq_lens_where_the_mirror_is_exact(
    capabilities: Capabilities, needs: bool
) -> None:
    """SGLang's question is answered True for exact lengths alone."""
    plan = _plan(capabilities)

    assert plan.needs_cpu_seq_lens is needs


def test_plan_lists_its_values() -> None:
    """Every value is listed: the server's, then each phase's."""
    plan = _plan()

    listed = [(phase and phase.value, resolved.capability) for phase, resolved in plan.values()]

    of_phase = ["graph_replay", "graph_metadata", "sync_free_prepare", "shared_reads_end"]
    of_all = _HELD.split(", ")
    of_server = [name for name in of_all if name not in of_phase]
    phases = ["prefill", "decode", "verify"]
    assert listed == [(None, name) for name in of_server] + [
        (phase, name) for phase in phases for name in of_phase
    ]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_plan(line="--disable-piecewise-cuda-graph"), id="effects"),
        pytest.param(_plan(backend="mla"), id="causes"),
        pytest.param(
            _plan().with_problems((Problem(code="c", message="m", remedy="r"),)), id="problems"
        ),
    ],
)
def test_fingerprint_is_of_values_alone(other: Plan) -> None:
    """Plans of equal values configure equal servers, whoever caused them."""
    plan = _plan()

    assert plan.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_plan(READS), id="a server's value"),
        pytest.param(
            _plan(OPTS_OUT.model_copy(update={"sync_free_prepare": True})), id="a phase's value"
        ),
        pytest.param(
            resolve(
                [use("fa3", OPTS_OUT)], flags(SPECULATING), rules=RuleSet.builtin("sglang-0.5.23")
            ),
            id="rules",
        ),
    ],
)
def test_fingerprint_tells_values_and_rules_apart(other: Plan) -> None:
    """Plans that differ in a value or in their rules have different fingerprints."""
    plan = _plan()

    assert plan.fingerprint != other.fingerprint


def test_fingerprint_is_stable() -> None:
    """A fingerprint that was written down is found again."""
    plan = _plan()

    assert plan.fingerprint == "9c834158289bdd04"


def test_plan_survives_pickling() -> None:
    """A plan crosses into another process and is the same there."""
    plan = _plan()

    carried = pickle.loads(pickle.dumps(plan))  # noqa: S301 - our own bytes

    assert (carried.server, carried.phases, carried.uses) == (plan.server, plan.phases, plan.uses)


def test_plan_raised_by_the_engine_joins_its_need() -> None:
    """What an engine cannot do itself is one more need, with its cause and its effect."""
    plan = _plan(_BOUNDED)

    raised = plan.raised("host_seq_lens", _EXACT, "the engine keeps no bound")

    mirror = raised["host_seq_lens"]
    assert (mirror.value, mirror.effect.text, mirror.causes[0]) == (
        _EXACT,
        "a D2H copy and a host wait in every overlapped speculative step",
        Cause(
            kind=CauseKind.ENGINE,
            name="host_seq_lens",
            value=_EXACT,
            reason="the engine keeps no bound",
            origin=Origin.FORCED,
        ),
    )


def test_plan_raised_by_the_engine_keeps_the_rest() -> None:
    """Raising one value leaves the others, and never lowers a need."""
    plan = _plan(READS)

    raised = plan.raised("host_seq_lens", _BOUND, "the engine keeps a bound")

    others = raised.server.keys() - {"host_seq_lens"}
    assert (raised["host_seq_lens"].value, {name: raised[name] for name in others}) == (
        _EXACT,
        {name: plan[name] for name in others},
    )


def _mirror(*capabilities: Capabilities) -> tuple[object, list[tuple[int | None, object]]]:
    plans = [at_rank(_plan(said), rank) for rank, said in enumerate(capabilities)]
    plan = plans[0]
    for other in plans[1:]:
        plan = plan.join(other)
    mirror = plan["host_seq_lens"]
    return mirror.value, [(cause.rank, cause.value) for cause in mirror.causes]


@pytest.mark.parametrize(
    ("ranks", "value", "causes"),
    [
        pytest.param([OPTS_OUT, OPTS_OUT], _NONE, [(0, _NONE), (1, _NONE)], id="all opt out"),
        pytest.param([OPTS_OUT, READS], _EXACT, [(1, _EXACT), (0, _NONE)], id="one reads"),
        pytest.param(
            [_BOUNDED, OPTS_OUT, READS],
            _EXACT,
            [(2, _EXACT), (0, _BOUND), (1, _NONE)],
            id="three differ",
        ),
    ],
)
def test_plans_join_to_every_ranks_needs(
    ranks: Sequence[Capabilities], value: HostSeqLens, causes: list[tuple[int, HostSeqLens]]
) -> None:
    """What one rank needs, all have; the causes say whose it is."""
    actual = _mirror(*ranks)

    assert actual == (value, causes)


def test_plans_that_are_joined_agree_with_one_plan_of_all_uses() -> None:
    """Joining plans of two ranks gives the values and causes of one plan of all their uses."""
    one, other = use("fa3", READS), use("mla", OPTS_OUT)

    both = resolve([one], flags(), rules=RuleSet.builtin("sglang-0.5.13")).join(
        resolve([other], flags(), rules=RuleSet.builtin("sglang-0.5.13"))
    )

    whole = resolve([one, other], flags(), rules=RuleSet.builtin("sglang-0.5.13"))
    assert (both.server, both.phases, both.uses) == (whole.server, whole.phases, whole.uses)


def test_plans_that_are_joined_keep_the_problems_of_both() -> None:
    """Problems of two ranks are listed once each, sorted."""
    one = resolve(
        [missing_use("mla"), missing_use("fa3")], flags(), rules=RuleSet.builtin("sglang-0.5.13")
    )
    other = resolve(
        [missing_use("fa3"), missing_use("b")], flags(), rules=RuleSet.builtin("sglang-0.5.13")
    )

    both = one.join(other)

    assert [found.message for found in both.problems] == ["no b.", "no fa3.", "no mla."]


def test_plans_that_are_joined_may_conflict() -> None:
    """Two ranks without a common page size have a conflict that names both owners."""
    one = _plan(Capabilities(page_sizes=Exact(16)))
    other = _plan(Capabilities(page_sizes=Exact(64)), backend="mla")

    both = one.join(other)

    assert both["page_sizes"].value == Conflict(("fa3", "mla"))


def test_plans_of_different_rules_are_not_joined() -> None:
    """Ranks that resolve under different rules have no common plan."""
    one = _plan()
    other = resolve([use()], flags(), rules=RuleSet.builtin("sglang-0.5.23"))

    error = error_of(lambda: one.join(other))

    assert error == (
        "plans with rules 'sglang-0.5.13' and 'sglang-0.5.23' cannot be joined; "
        "expected the same on every rank. Resolve both under one of them."
    )


@pytest.mark.parametrize(
    ("one", "other", "effect"),
    [
        pytest.param(
            use("fa3", OPTS_OUT),
            use("mla", READS),
            "a D2H copy and a host wait in every overlapped speculative step",
            id="of the value that counts",
        ),
        pytest.param(
            use("fa3", OPTS_OUT, phase=Phase.PREFILL),
            use("mla", OPTS_OUT),
            "no copy, no wait",
            id="used on one rank is used",
        ),
        pytest.param(
            use("fa3", OPTS_OUT, phase=Phase.PREFILL),
            use("mla", READS, phase=Phase.PREFILL),
            "no effect: no use on this server reads it",
            id="used on no rank",
        ),
    ],
)
def test_plans_that_are_joined_have_the_effect_of_the_joined_value(
    one: Use, other: Use, effect: str
) -> None:
    """What a joined value does is told of the value that all ranks have."""
    plans = [
        resolve([each], flags(SPECULATING), rules=RuleSet.builtin("sglang-0.5.13"))
        for each in (one, other)
    ]

    texts = {str(a.join(b)["host_seq_lens"].effect) for a, b in (plans, reversed(plans))}

    assert texts == {effect}


def test_causes_are_kept_once() -> None:
    """The same contribution twice is one cause."""
    causes = [_cause("fa3", _EXACT), _cause("fa3", _EXACT)]

    resolved = resolved_from("host_seq_lens", _EXACT, causes, _NO_EFFECT)

    assert [cause.name for cause in resolved.causes] == ["fa3"]


def test_causes_are_ordered_by_what_they_do() -> None:
    """Overrides, then who decides, then who takes something away, then who takes nothing."""
    causes = [
        _cause("any", ANY),
        _cause("multiples", MultipleOf(16)),
        _cause("exact", Exact(64)),
        _cause("operator", Exact(64), CauseKind.OVERRIDE),
        _cause("also any", ANY),
    ]

    resolved = resolved_from("page_sizes", Exact(64), causes, _NO_EFFECT)

    names = [cause.name for cause in resolved.causes]
    assert names == ["operator", "exact", "multiples", "also any", "any"]


def test_causes_of_one_weight_are_ordered_by_who_and_where() -> None:
    """Among equals: kind, name, role, phase, way, words and rank, ranks by number."""
    base = Cause(
        kind=CauseKind.BACKEND,
        name="b",
        role=Role.DRAFT,
        phase=Phase.DECODE,
        value=_EXACT,
        reason="why",
        origin=Origin.DECLARED,
    )
    ordered = [
        replace(base, name="a", rank=9),
        replace(base, role=None, phase=None),
        base,
        replace(base, rank=2),
        replace(base, rank=10),
        replace(base, phase=Phase.VERIFY),
        replace(base, role=Role.TARGET),
        replace(base, kind=CauseKind.RULE, name="a"),
    ]

    resolved = resolved_from("host_seq_lens", _EXACT, reversed(ordered), _NO_EFFECT)

    assert list(resolved.causes) == ordered


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        pytest.param(Effect(active=True, text="it costs"), "it costs", id="active"),
        pytest.param(Effect(active=False, text="it is off"), "no effect: it is off", id="idle"),
    ],
)
def test_effect_is_written_as_people_read_it(effect: Effect, text: str) -> None:
    """An effect says what it does, or that it does nothing and why."""
    written = str(effect)

    assert written == text


@pytest.mark.parametrize(
    ("line", "rules", "expected"),
    [
        pytest.param("", "sglang-0.5.13", False, id="no speculation"),
        pytest.param("--speculative-algorithm EAGLE", "sglang-0.5.13", True, id="overlapped"),
        pytest.param(
            "--speculative-algorithm EAGLE --disable-overlap-schedule",
            "sglang-0.5.13",
            False,
            id="no overlap",
        ),
        pytest.param("--speculative-algorithm NGRAM", "sglang-0.5.13", False, id="not by this one"),
        pytest.param("--speculative-algorithm NGRAM", "sglang-0.5.23", True, id="by the next"),
    ],
)
def test_plan_relays_speculation_that_is_overlapped(
    line: str, rules: str, *, expected: bool
) -> None:
    """Only steps that the engine overlaps are relayed."""
    plan = resolve([use()], flags(line), rules=RuleSet.builtin(rules))

    assert plan.relays_speculation is expected


def test_plan_is_printed_as_lines_that_a_person_reads() -> None:
    """A printed plan has the rules, each value with its first cause, and what is wrong."""
    plan = resolve([use("fa3", READS)], flags(SPECULATING), rules=RuleSet.builtin("sglang-0.5.23"))

    text = str(plan)

    lines = text.splitlines()
    assert lines[0] == f"plan {plan.fingerprint} under sglang-0.5.23"
    assert "  host_seq_lens: exact (fa3)" in lines
    assert lines[-1].startswith("  no effect here: ")
    assert len(lines) <= 11


def test_printed_plan_names_its_problems() -> None:
    """What is wrong with a plan is told by its codes."""
    plan = resolve([missing_use("fa3")], flags(), rules=RuleSet.builtin("sglang-0.5.13"))

    last = str(plan).splitlines()[-1]

    assert last == "  1 problem(s): backend-missing"


def test_equal_plans_have_one_hash() -> None:
    """A plan is a key like any other value."""
    plans = [
        resolve([use("fa3", READS)], flags(SPECULATING), rules=RuleSet.builtin("sglang-0.5.13"))
        for _ in range(2)
    ]

    assert len({*plans}) == 1
