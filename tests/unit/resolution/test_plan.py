from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import pytest

from backend_caps import Conflict, Exact, MultipleOf, Origin, Use, resolve
from backend_caps.capability.backend import Problem
from backend_caps.capability.kind import ANY, Phase, Role, Scope
from backend_caps.capability.provenance import Source
from backend_caps.capability.vocabulary import CAPABILITIES, Capabilities, HostSeqLens
from backend_caps.resolution.errors import ResolutionError
from backend_caps.resolution.plan import Cause, CauseKind, Plan, resolved_from
from backend_caps.resolution.rules import Effect, RuleSet
from tests.unit.building import (
    OPTS_OUT,
    READS,
    RULES_13,
    RULES_23,
    SPECULATING,
    at_rank,
    flags,
    missing_use,
    use,
)

_EXACT, _BOUND, _NONE = HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND, HostSeqLens.NONE
_BOUNDED = Capabilities(host_seq_lens=_BOUND, max_context_len_known=True)
_NO_EFFECT = Effect(active=True, text="")
_COPIES = "a D2H copy and a host wait in every overlapped speculative step"
_IDLE = "no effect: no use on this server reads it"
_PREFILLS = use("fa3", OPTS_OUT, phase=Phase.PREFILL)
_HELD = ", ".join(name for name, kind in CAPABILITIES.items() if kind.scope is not Scope.USE)


def _plan(
    capabilities: Capabilities = OPTS_OUT, line: str = SPECULATING, *, backend: str = "fa3"
) -> Plan:
    return resolve([use(backend, capabilities)], flags(line), rules=RULES_13)


def _cause(name: str, value: object, kind: CauseKind = CauseKind.BACKEND) -> Cause:
    return Cause(kind=kind, name=name, value=value, reason="why", origin=Origin.DECLARED)


def test_plan_is_indexed_by_a_capability_and_a_phase() -> None:
    """A server's capability is looked up by its name, a phase's by the phase too."""
    plan = _plan(Capabilities(sync_free_prepare=False))

    values = [plan["sync_free_prepare", phase].value for phase in (Phase.DECODE, Phase.PREFILL)]

    assert values == [False, True]
    assert plan["host_seq_lens"].capability == "host_seq_lens"


_HAS_NO = f"a plan has no {{!r}}; it has: {_HELD}"
_OF_PHASE = "'graph_replay' has scope phase; write plan['graph_replay', Phase.DECODE]"
_OF_SERVER = "'host_seq_lens' has scope server; write plan['host_seq_lens']"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        pytest.param("host_seq_len", _HAS_NO.format("host_seq_len"), id="unknown"),
        pytest.param("devices", _HAS_NO.format("devices"), id="not joined"),
        pytest.param(("roles", Phase.DECODE), _HAS_NO.format("roles"), id="not a phase's"),
        pytest.param("graph_replay", _OF_PHASE, id="without its phase"),
        pytest.param(("host_seq_lens", Phase.DECODE), _OF_SERVER, id="with a phase"),
    ],
)
def test_plan_tells_how_it_is_indexed(key: str | tuple[str, Phase], text: str) -> None:
    """A wrong key is an error that says what there is, or how it is written."""
    plan = _plan()

    with pytest.raises(KeyError) as raised:
        plan[key]

    assert raised.value.args == (text,)


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


def _of_version(version: str) -> Plan:
    plan = _plan()
    source = Source(distribution="fa3", version=version)
    return replace(plan, uses=tuple(replace(own, source=source) for own in plan.uses))


_PROBLEM = Problem(code="c", message="m", remedy="r")
_SYNC_FREE = OPTS_OUT.model_copy(update={"sync_free_prepare": True})


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        pytest.param(_plan(), True, id="nothing"),
        pytest.param(replace(_plan(), problems=(_PROBLEM,)), True, id="problems"),
        pytest.param(_plan(line=f"{SPECULATING} --tp-size 1"), True, id="a default that is given"),
        pytest.param(_plan(line="--disable-piecewise-cuda-graph"), False, id="flags"),
        pytest.param(_plan(backend="mla"), False, id="a backend"),
        pytest.param(_of_version("2"), False, id="a backend's version"),
        pytest.param(_plan(READS), False, id="a server's value"),
        pytest.param(_plan(_SYNC_FREE), False, id="a phase's value"),
        pytest.param(
            resolve([use("fa3", OPTS_OUT)], flags(SPECULATING), rules=RULES_23), False, id="rules"
        ),
    ],
)
def test_fingerprint_is_of_all_that_decides(other: Plan, *, equal: bool) -> None:
    """Equal fingerprints are of equal backends, versions, flags, rules and values."""
    assert (_plan().fingerprint == other.fingerprint) is equal


def test_fingerprint_is_stable() -> None:
    """A fingerprint that was written down is found again."""
    assert (_plan().fingerprint, _plan().digest) == ("8aa030087cf514f5", "9c834158289bdd04")


def test_plan_survives_pickling() -> None:
    """A plan crosses into another process and is the same there."""
    plan = _plan()

    carried = pickle.loads(pickle.dumps(plan))  # noqa: S301 - our own bytes

    assert (carried.server, carried.phases, carried.uses) == (plan.server, plan.phases, plan.uses)


def test_plan_raised_by_the_engine_joins_its_need() -> None:
    """What an engine cannot do itself is one more need, with its cause and its effect."""
    raised = _plan(_BOUNDED).raised("host_seq_lens", _EXACT, "it keeps no bound")

    mirror = raised["host_seq_lens"]
    first, *_ = mirror.causes
    told = (first.kind, first.name, first.value, first.reason, first.origin)
    assert (mirror.value, mirror.effect.text) == (_EXACT, _COPIES)
    assert told == (CauseKind.ENGINE, "host_seq_lens", _EXACT, "it keeps no bound", Origin.FORCED)


def test_plan_raised_by_the_engine_keeps_the_rest() -> None:
    """Raising one value leaves the others, and never lowers a need."""
    plan = _plan(READS)

    raised = plan.raised("host_seq_lens", _BOUND, "the engine keeps a bound")

    own = raised["host_seq_lens"]
    assert raised.server == {**plan.server, "host_seq_lens": own}
    assert own.value is _EXACT


_OF_THREE = [(2, _EXACT), (0, _BOUND), (1, _NONE)]


@pytest.mark.parametrize(
    ("ranks", "value", "causes"),
    [
        pytest.param([OPTS_OUT, OPTS_OUT], _NONE, [(0, _NONE), (1, _NONE)], id="all opt out"),
        pytest.param([OPTS_OUT, READS], _EXACT, [(1, _EXACT), (0, _NONE)], id="one reads"),
        pytest.param([_BOUNDED, OPTS_OUT, READS], _EXACT, _OF_THREE, id="three differ"),
    ],
)
def test_plans_join_to_every_ranks_needs(
    ranks: Sequence[Capabilities], value: HostSeqLens, causes: list[tuple[int, HostSeqLens]]
) -> None:
    """What one rank needs, all have; the causes say whose it is."""
    plans = [at_rank(_plan(said), rank) for rank, said in enumerate(ranks)]

    mirror = reduce(Plan.join, plans)["host_seq_lens"]

    assert (mirror.value, [(each.rank, each.value) for each in mirror.causes]) == (value, causes)


def test_plans_that_are_joined_agree_with_one_plan_of_all_uses() -> None:
    """Joining plans of two ranks gives the values and causes of one plan of all their uses."""
    one, other = use("fa3", READS), use("mla", OPTS_OUT)

    both = resolve([one], flags(), rules=RULES_13).join(resolve([other], flags(), rules=RULES_13))

    whole = resolve([one, other], flags(), rules=RULES_13)
    assert (both.server, both.phases, both.uses) == (whole.server, whole.phases, whole.uses)


def test_plans_that_are_joined_keep_the_problems_of_both() -> None:
    """Problems of two ranks are listed once each, sorted."""
    one, other = (
        resolve([missing_use(name) for name in names], flags(), rules=RULES_13)
        for names in (("mla", "fa3"), ("fa3", "b"))
    )

    both = one.join(other)

    assert [found.message for found in both.problems] == ["no b.", "no fa3.", "no mla."]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        pytest.param(f"{SPECULATING} --disable-overlap-schedule", "flags", id="flags"),
        pytest.param(SPECULATING, "policy", id="policy"),
    ],
)
def test_plans_of_different_premises_are_not_joined(line: str, field: str) -> None:
    """Ranks with other flags or another policy have no common plan."""
    one = resolve([use()], flags(SPECULATING))
    other = resolve([use()], flags(line), policy="quiet")

    with pytest.raises(ResolutionError, match=f"plans with {field} "):
        one.join(other)


def test_plans_that_are_joined_may_conflict() -> None:
    """Two ranks without a common page size have a conflict that names both owners."""
    one = _plan(Capabilities(page_sizes=Exact(16)))

    both = one.join(_plan(Capabilities(page_sizes=Exact(64)), backend="mla"))

    assert both["page_sizes"].value == Conflict(("fa3", "mla"))


@pytest.mark.parametrize(
    ("one", "other", "effect"),
    [
        pytest.param(use("fa3", OPTS_OUT), use("mla", READS), _COPIES, id="of what counts"),
        pytest.param(_PREFILLS, use("mla", OPTS_OUT), "no copy, no wait", id="used on one rank"),
        pytest.param(_PREFILLS, _PREFILLS, _IDLE, id="used on no rank"),
    ],
)
def test_plans_that_are_joined_have_the_effect_of_the_joined_value(
    one: Use, other: Use, effect: str
) -> None:
    """The effect of a joined value is that of the value that all ranks have."""
    plans = [resolve([each], flags(SPECULATING), rules=RULES_13) for each in (one, other)]

    texts = {str(a.join(b)["host_seq_lens"].effect) for a, b in (plans, reversed(plans))}

    assert texts == {effect}


def test_causes_are_ordered_by_what_they_do() -> None:
    """Overrides, then who decides, who takes something away, who takes nothing; each once."""
    causes = [
        _cause("any", ANY),
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
    base = replace(_cause("b", _EXACT), role=Role.DRAFT, phase=Phase.DECODE)
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
    ("line", "rules", "expected"),
    [
        pytest.param("", RULES_13, False, id="no speculation"),
        pytest.param("EAGLE", RULES_13, True, id="overlapped"),
        pytest.param("EAGLE --disable-overlap-schedule", RULES_13, False, id="no overlap"),
        pytest.param("NGRAM", RULES_13, False, id="not by this one"),
        pytest.param("NGRAM", RULES_23, True, id="by the next"),
    ],
)
def test_plan_relays_speculation_that_is_overlapped(
    line: str, rules: RuleSet, *, expected: bool
) -> None:
    """Only steps that the engine overlaps are relayed."""
    read = flags(f"--speculative-algorithm {line}" if line else "")

    assert resolve([use()], read, rules=rules).relays_speculation is expected


def test_plan_is_printed_as_lines_that_a_person_reads() -> None:
    """A printed plan has the rules, each value with its first cause, and what is wrong."""
    plan = resolve([missing_use("fa3")], flags(SPECULATING), rules=RULES_23)

    lines = str(plan).splitlines()

    assert lines[0] == f"plan {plan.fingerprint} under sglang-0.5.23"
    assert "  host_seq_lens: exact (fa3)" in lines
    assert lines[-2].startswith("  no effect here: ")
    assert lines[-1] == "  1 problem(s): backend-missing"
    assert len(lines) <= 12


def test_equal_plans_have_one_hash() -> None:
    """A plan is a key like any other value."""
    assert len({_plan(), _plan()}) == 1
