from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps import Declaration, Facts, Plan, Rule, RuleSet, ServerFlags, Use, resolve
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.resolution.resolver import cause_of_use
from tests.property.order import improvements, is_no_better
from tests.property.strategies import Situation, flags, law, partly_known, rules, some_uses, uses
from tests.unit.building import at_rank, missing_use

_ENGINES = ["sglang-0.5.13", "sglang-0.5.23"]
_NAMES = list(CAPABILITIES)


def _answer(plan: Plan) -> tuple[object, ...]:
    return plan.server, plan.phases, plan.problems, plan.fingerprint


@law
@given(server=flags, running=some_uses, data=st.data())
def test_resolve_does_not_depend_on_order_or_repetition(
    server: ServerFlags, running: list[Use], data: st.DataObject
) -> None:
    """The same uses in another order, some of them twice, give the same plan."""
    again = data.draw(st.lists(st.sampled_from(running)))
    shuffled = data.draw(st.permutations([*running, *again]))

    plans = [resolve(these, server) for these in (running, shuffled)]

    assert _answer(plans[0]) == _answer(plans[1])


@law
@given(server=flags, running=some_uses, one_more=uses)
def test_one_more_use_never_improves_a_value(
    server: ServerFlags, running: list[Use], one_more: Use
) -> None:
    """One more backend never removes a need and never adds a support."""
    before = resolve(running, server)

    assert improvements(resolve([*running, one_more], server), before) == []


@law
@given(server=flags, running=some_uses, one_more=rules)
def test_one_more_rule_never_improves_a_value(
    server: ServerFlags, running: list[Use], one_more: Rule
) -> None:
    """A rule only forces towards worse."""
    builtin = RuleSet.builtin("sglang-0.5.13")
    before = resolve(running, server, rules=builtin)

    after = resolve(running, server, rules=builtin.with_rules([one_more]))

    assert improvements(after, before) == []


@pytest.mark.parametrize("switch", ["enable_two_batch_overlap", "enable_mixed_chunk"])
@pytest.mark.parametrize("engine", _ENGINES)
@law
@given(server=flags, running=some_uses)
def test_flag_that_a_rule_reads_never_improves_a_value(
    engine: str, switch: str, server: ServerFlags, running: list[Use]
) -> None:
    """Switching on what a built-in rule asks for never makes a value better."""
    rule_set = RuleSet.builtin(engine)
    before = resolve(running, server.updated({switch: False}), rules=rule_set)

    after = resolve(running, server.updated({switch: True}), rules=rule_set)

    assert improvements(after, before) == []


@law
@given(server=flags, running=some_uses)
def test_undeclared_is_never_better_than_any_declaration(
    server: ServerFlags, running: list[Use]
) -> None:
    """A backend that says nothing gets nothing that one that says something would not."""
    silent = [replace(use, declaration=Declaration(), adds_only=False) for use in running]
    before = resolve(running, server)

    assert improvements(resolve(silent, server), before) == []


@law
@given(server=flags, running=some_uses)
def test_missing_backend_is_as_bad_as_an_undeclared_one(
    server: ServerFlags, running: list[Use]
) -> None:
    """A backend that could not be read counts like one that says nothing."""
    missing = [
        replace(use, declaration=None, adds_only=False, problem=missing_use().problem)
        for use in running
    ]
    silent = [replace(use, declaration=Declaration(), adds_only=False) for use in running]

    plans = [resolve(these, server) for these in (missing, silent)]

    assert plans[0].fingerprint == plans[1].fingerprint


@pytest.mark.parametrize("name", _NAMES)
@law
@given(use=uses, known=partly_known())
def test_undecided_value_is_never_better_than_a_decided_one(
    name: str, use: Use, known: tuple[Situation, Situation]
) -> None:
    """While conditions are open, a value grants nothing that any decision would take away."""
    partly, whole = known
    open_, decided = (cause_of_use(use, name, each) for each in (partly, whole))

    held = CAPABILITIES[name].best if open_ is None else open_.value
    granted = CAPABILITIES[name].best if decided is None else decided.value
    assert is_no_better(name, held, granted)


@law
@given(server=flags, running=some_uses, known=partly_known())
def test_more_facts_never_take_a_value_away(
    server: ServerFlags, running: list[Use], known: tuple[Situation, Situation]
) -> None:
    """What a plan grants before the machine is known, it grants afterwards."""
    partly, whole = (_facts(each) for each in known)
    # A flag that says otherwise than a fact makes less known, and not more.
    silent = server.updated(_SILENT)
    early = resolve(running, silent, facts=partly)

    assert improvements(early, resolve(running, silent, facts=whole)) == []


_SILENT = {name: ServerFlags.model_fields[name].default for name in ("device", "kv_cache_dtype")}


def _facts(situation: Situation) -> Facts:
    return Facts.model_validate({k: v for k, v in situation.items() if k in Facts.model_fields})


@law
@given(server=flags, running=some_uses)
def test_deciding_causes_give_the_value(server: ServerFlags, running: list[Use]) -> None:
    """A value is the join of its causes: no cause is left out, none is added."""
    plan = resolve(running, server)

    for _, resolved in plan.values():
        kind = CAPABILITIES[resolved.capability]
        value = kind.best
        for cause in resolved.causes:
            value = kind.join(value, cause.value)
        assert is_no_better(resolved.capability, value, resolved.value)
        assert is_no_better(resolved.capability, resolved.value, value)


@st.composite
def _ranks(draw: st.DrawFn) -> list[Plan]:
    """Plans of three ranks of one server."""
    server = draw(flags)
    return [at_rank(resolve(draw(some_uses), server), rank) for rank in range(3)]


@law
@given(ranks=_ranks())
def test_joining_plans_is_commutative(ranks: list[Plan]) -> None:
    """It does not matter which of two ranks speaks first."""
    one, other, _ = ranks

    assert _answer(one.join(other)) == _answer(other.join(one))


@law
@given(ranks=_ranks())
def test_joining_plans_is_associative(ranks: list[Plan]) -> None:
    """It does not matter which ranks agree first."""
    a, b, c = ranks

    assert _answer(a.join(b).join(c)) == _answer(a.join(b.join(c)))


@law
@given(ranks=_ranks())
def test_joining_plans_is_idempotent(ranks: list[Plan]) -> None:
    """A plan joined with itself is itself."""
    plan = ranks[0]

    assert _answer(plan.join(plan)) == _answer(plan)


@law
@given(ranks=_ranks())
def test_joined_plan_is_no_better_than_either(ranks: list[Plan]) -> None:
    """What one rank needs, all have, and what one rank lacks, none has."""
    one, other, _ = ranks
    both = one.join(other)

    assert (improvements(both, one), improvements(both, other)) == ([], [])


@law
@given(server=flags, running=some_uses, others=some_uses)
def test_joining_plans_is_resolving_their_uses_together(
    server: ServerFlags, running: list[Use], others: list[Use]
) -> None:
    """Agreement of ranks gives what one resolution of all their uses gives."""
    joined = resolve(running, server).join(resolve(others, server))

    whole = resolve([*running, *others], server)

    assert (joined.fingerprint, joined.server, joined.phases) == (
        whole.fingerprint,
        whole.server,
        whole.phases,
    )
