"""What an upgrade of an engine changes of a plugin's points of contact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from backend_caps.compatibility.contact import (
    ASSIGNED_ELSEWHERE,
    Contact,
    ContactKind,
    Form,
    Verdict,
)
from backend_caps.compatibility.upgrades import brought

CLASS, OVERRIDE = ContactKind.CLASS, ContactKind.OVERRIDE
READ, MEMBER, CALL = ContactKind.READ, ContactKind.MEMBER, ContactKind.CALL
HOLDS, BREAKS, CHANGED = Verdict.HOLDS, Verdict.BREAKS, Verdict.CHANGED
OPEN, UNUSED = Verdict.NOT_CHECKED, Verdict.UNUSED


def _contact(
    verdict: Verdict = HOLDS,
    kind: ContactKind = CALL,
    what: str = "A.step",
    line: int = 1,
    **values: Any,
) -> Contact:
    return Contact(kind=kind, verdict=verdict, what=what, at=f"plugin/m.py:{line}", **values)


def _found(old: Sequence[Contact], new: Sequence[Contact]) -> list[tuple[str, Verdict, str]]:
    return [(each.what, each.verdict, each.why) for each in brought(old, new)]


VERDICTS = [
    pytest.param(CALL, HOLDS, BREAKS, BREAKS, id="it broke"),
    pytest.param(CALL, CHANGED, BREAKS, BREAKS, id="it is worse"),
    pytest.param(CALL, OPEN, UNUSED, UNUSED, id="it is unused now"),
    pytest.param(CALL, BREAKS, BREAKS, None, id="it was broken"),
    pytest.param(CALL, BREAKS, HOLDS, None, id="it is repaired"),
    pytest.param(CALL, HOLDS, HOLDS, None, id="it holds"),
    pytest.param(CALL, HOLDS, OPEN, None, id="a call is not checked any more"),
    pytest.param(READ, HOLDS, OPEN, None, id="an attribute is not checked any more"),
    pytest.param(READ, OPEN, OPEN, None, id="an attribute was never stated"),
    pytest.param(CALL, None, BREAKS, BREAKS, id="it is new, and breaks"),
    pytest.param(CALL, None, HOLDS, None, id="it is new, and holds"),
    pytest.param(READ, None, OPEN, None, id="it is new, and not checked"),
    pytest.param(MEMBER, None, BREAKS, BREAKS, id="the engine asks for it now"),
    pytest.param(MEMBER, None, OPEN, CHANGED, id="the engine may ask for it now"),
    pytest.param(MEMBER, None, HOLDS, None, id="the engine asks for what is there"),
    pytest.param(MEMBER, OPEN, OPEN, None, id="the engine may have asked before"),
    pytest.param(MEMBER, OPEN, BREAKS, BREAKS, id="the engine may have, and does"),
]


@pytest.mark.parametrize(("kind", "before", "after", "expected"), VERDICTS)
def test_an_upgrade_brings_what_held_before(
    kind: ContactKind, before: Verdict | None, after: Verdict, expected: Verdict | None
) -> None:
    """A finding that the version before has, too, is not the upgrade's."""
    old = [] if before is None else [_contact(before, kind)]

    found = [verdict for _, verdict, _ in _found(old, [_contact(after, kind)])]

    assert found == ([] if expected is None else [expected])


def test_a_contact_is_the_same_at_its_line() -> None:
    """Another line has another, which breaks now."""
    old = [_contact(BREAKS, line=1)]
    new = [_contact(BREAKS, line=1), _contact(BREAKS, line=2)]

    assert [each.at for each in brought(old, new)] == ["plugin/m.py:2"]


def test_an_attribute_that_no_class_states_may_be_lost() -> None:
    """The finding says what is known."""
    given = _contact(OPEN, READ, why=ASSIGNED_ELSEWHERE)

    assert _found([_contact(HOLDS, READ)], [given]) == [
        ("A.step", CHANGED, "nothing states it any more; something may assign it, or not")
    ]
    assert _found([given], [given]) == []


def test_a_default_that_a_call_leaves_out_may_be_another() -> None:
    """It counts once for all calls, at the first."""
    old, new = (("rank", "0"), ("scope", "'all'")), (("scope", "'own'"), ("more", "1"))
    before = [_contact(HOLDS, line=line, defaults=old) for line in (1, 2)]
    after = [_contact(HOLDS, line=line, defaults=new) for line in (1, 2)]

    [found] = brought(before, after)

    assert (found.verdict, found.at) == (CHANGED, "plugin/m.py:1")
    assert found.why == "scope is left out; it was 'all' then, and is 'own' now"
    assert [*brought(before, before)] == []


def test_a_value_that_a_class_has_of_the_engine_may_be_another() -> None:
    """The class is without a line of its own for it."""
    old, new = _class(values=[("level", "1"), ("gone", "1")]), _class(values=[("level", "2")])

    assert _found([old], [new]) == [("A.level", CHANGED, "the engine's value was 1, and is 2 now")]


def test_a_method_is_the_same_in_the_branch_of_another_version() -> None:
    """What was broken in one is not brought by the other."""
    before = _contact(BREAKS, OVERRIDE, line=3, owner_at="plugin/m.py:1")
    after = replace(before, at="plugin/m.py:7")

    assert _found([before], [after]) == []


FORMS = [
    pytest.param(Form.VALUE, Form.CALLED, "it was a value that is read, and is called",
                 id="a method that was a property"),
    pytest.param(Form.CALLED, Form.AWAITED, "it was called, and is called and awaited",
                 id="a coroutine that was a method"),
    pytest.param(Form.CALLED, Form.CALLED, None, id="the same"),
    pytest.param(None, Form.CALLED, None, id="unknown before"),
    pytest.param(Form.CALLED, None, None, id="unknown now"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "why"), FORMS)
def test_another_form_breaks(before: Form | None, after: Form | None, why: str | None) -> None:
    """It is used as it was, which the engine does not take any more."""
    found = _found([_contact(form=before)], [_contact(form=after)])

    assert found == ([] if why is None else [("A.step", BREAKS, why)])


PARAMETERS = [
    pytest.param(("a", "b"), (), ("b", "a"), (), True, id="two are exchanged"),
    pytest.param(("a", "b"), (), ("a", "c"), ("b",), True, id="one comes before another"),
    pytest.param(("a", "b"), ("c",), ("a", "c"), (), True, id="one is gone before another"),
    pytest.param(("a", "b"), (), ("a", "c"), (), False, id="one has another name"),
    pytest.param(("a",), ("b",), ("a",), ("c", "b"), False, id="others are added"),
    pytest.param(("a", "b"), (), ("a",), ("b",), False, id="one is by name"),
]


@pytest.mark.parametrize(("old", "old_others", "new", "new_others", "breaks"), PARAMETERS)
def test_an_argument_that_goes_to_another_parameter_breaks(
    old: tuple[str, ...],
    old_others: tuple[str, ...],
    new: tuple[str, ...],
    new_others: tuple[str, ...],
    breaks: bool,
) -> None:
    """A parameter that stands elsewhere, before or after, is another."""
    before = _contact(parameters=old, others=old_others)
    after = _contact(parameters=new, others=new_others)

    assert bool(_found([before], [after])) is breaks


def test_a_shifted_argument_names_the_parameters() -> None:
    """Those before, and those after."""
    before, after = _contact(parameters=("a", "b")), _contact(parameters=("b", "a"))

    [(_, _, why)] = _found([before], [after])

    assert why == "its arguments by position went to a, b, and go to b, a"


DROPPED = ("A.get_slots", UNUSED, "the engine has no such method any more")


OWN = ("get_slots", "get_free_slots")


def _class(
    *inherited: str,
    own: Sequence[str] = OWN,
    of_self: Sequence[str] = (),
    values: Sequence[tuple[str, str]] = (),
) -> Contact:
    return _contact(
        kind=CLASS,
        what="A",
        inherited=inherited,
        own=tuple(own),
        called_of_self=tuple(of_self),
        values=tuple(values),
    )


AT = _class().at
OVERRIDDEN = _contact(kind=OVERRIDE, what="A.get_slots", line=3, owner_at=AT)
ELSEWHERE = replace(OVERRIDDEN, at="plugin/m.py:9")
DROPS = [
    pytest.param([_class()], [DROPPED], id="the engine has it no more"),
    pytest.param([_class(), OVERRIDDEN], [], id="the engine has it"),
    pytest.param([_class(), ELSEWHERE], [], id="another branch of the class has it"),
    pytest.param([_class(), replace(OVERRIDDEN, owner_at="plugin/m.py:8")], [DROPPED],
                 id="a class of the same name has it"),
    pytest.param([_class(own=())], [], id="the class has it no more"),
    pytest.param([], [], id="the class derives from nothing of the engine"),
    pytest.param(
        [_class("get_all_slots", "run")],
        [DROPPED, ("A.get_all_slots", CHANGED, "the engine calls it now, and get_slots no more")],
        id="another stands in for it",
    ),
    pytest.param([_class("slots_known")], [DROPPED], id="another was there before"),
    pytest.param([_class("slots_in_use")], [DROPPED], id="another was called of itself before"),
    pytest.param([_class("run_all")], [DROPPED], id="another is not alike"),
]  # fmt: skip


@pytest.mark.parametrize(("new", "expected"), DROPS)
def test_an_override_of_what_is_gone_is_unused(
    new: Sequence[Contact], expected: list[tuple[str, Verdict, str]]
) -> None:
    """A new method with half of its words stands in for it."""
    old = [_class("slots_known", of_self=["slots_in_use"]), OVERRIDDEN]

    assert _found(old, new) == expected


def test_a_method_stands_in_once_for_two() -> None:
    """It is found once, after what is unused."""
    other = replace(OVERRIDDEN, what="A.get_free_slots", at="plugin/m.py:5")

    found = _found([_class(), OVERRIDDEN, other], [_class("get_slots_of")])

    assert [what for what, _, _ in found] == ["A.get_slots", "A.get_free_slots", "A.get_slots_of"]
