"""The calls of an engine, with what is around each."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.sites import Site, sites_of
from tests.unit.compatibility.pairs import module_of, pair_of


def _sites(text: str, name: str = "plan") -> list[Site]:
    """List the calls of a name in the engine's file."""
    module = module_of(pair_of({"m": dedent(text)}), "engine.m")
    return [*sites_of(module).get(name, ())]


def _site(text: str) -> Site:
    [site] = _sites(text)
    return site


NAMED = [
    pytest.param("plan(1)", 1, id="a bare name"),
    pytest.param("a.b.plan(1)", 1, id="an attribute"),
    pytest.param("x.plan(y.plan())", 2, id="one in another"),
    pytest.param("plan()()", 1, id="the call of a result has no name"),
    pytest.param("plans[0](plan)", 0, id="nor has the call of an item"),
]


@pytest.mark.parametrize(("text", "num_sites"), NAMED)
def test_a_call_is_listed_by_the_name_that_is_called(text: str, num_sites: int) -> None:
    """Of an attribute, that is its last name."""
    assert len(_sites(text)) == num_sites


CALLERS = [
    pytest.param("plan()", "engine.m", None, id="outside of all"),
    pytest.param("\ndef f(): plan()", "f", "engine/m.py:2", id="a function"),
    pytest.param("\nclass A:\n  x = plan()", "A", None, id="the body of a class"),
    pytest.param("\nclass A:\n  async def f(self): await self.plan()", "A.f", "engine/m.py:3",
                 id="a method"),
    pytest.param("\ndef f():\n  def g(): plan()", "f", "engine/m.py:2", id="an inner function"),
    pytest.param("\ndef f():\n  class A:\n    def g(self): plan()", "A.g", "engine/m.py:4",
                 id="a method of an inner class"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "caller", "at"), CALLERS)
def test_a_caller_is_the_outermost_function_up_to_the_class(
    text: str, caller: str, at: str | None
) -> None:
    """A module is the caller of what stands outside of all functions."""
    site = _site(text)

    assert (site.caller, site.caller_at) == (caller, at)


RECEIVERS = [
    pytest.param("a.plan()", "a", id="a name"),
    pytest.param("a.b.plan()", None, id="an attribute"),
    pytest.param("f().plan()", None, id="a result"),
    pytest.param("plan()", None, id="nothing"),
]


@pytest.mark.parametrize(("text", "expected"), RECEIVERS)
def test_a_receiver_has_a_name_or_is_another_expression(text: str, expected: str | None) -> None:
    """It is what an attribute is called of."""
    assert _site(text).receiver == expected


def test_a_site_is_a_place_in_its_function_and_class() -> None:
    """Names are resolved there."""
    place = _site("\nclass A:\n  def f(self): plan()").place

    assert place.at == "engine/m.py:3"
    assert place.owner is not None
    assert (place.owner.name, [each.name for each in place.functions]) == ("A", ["f"])


RESULTS = [
    pytest.param("plan()", None, False, id="left alone"),
    pytest.param("async def f(): await plan()", None, False, id="awaited, and left alone"),
    pytest.param("a = plan()", None, True, id="one name"),
    pytest.param("a, b = plan()", 2, True, id="two names"),
    pytest.param("async def f(): a, b = await plan()", 2, True, id="two names, awaited"),
    pytest.param("a, *b = plan()", None, True, id="any number"),
    pytest.param("a = b, c = plan()", None, True, id="two targets"),
    pytest.param("f(plan())", None, True, id="given on"),
]


@pytest.mark.parametrize(("text", "unpacked", "is_used"), RESULTS)
def test_a_result_is_unpacked_into_names_or_used(
    text: str, unpacked: int | None, *, is_used: bool
) -> None:
    """`await` is no use by itself."""
    site = _site(text)

    assert (site.unpacked, site.is_used) == (unpacked, is_used)


PERMISSIONS = [
    pytest.param("def f(a):\n  if a.can_plan: a.plan()", ["can_plan"], id="of the receiver"),
    pytest.param("def f(a):\n  if a.can_plan and a.is_on and x: a.plan()", ["can_plan", "is_on"],
                 id="two of them"),
    pytest.param("def f(a):\n  if a.x.can_plan: a.x.plan()", ["can_plan"], id="of an attribute"),
    pytest.param("def f(a, b):\n  if b.can_plan: a.plan()", [], id="of another object"),
    pytest.param("def f(a):\n  if a.can_plan: a.stop()\n  a.plan()", [], id="of another call"),
    pytest.param("def f(a):\n  if a.can_plan: a.stop()\n  else: a.plan()", [], id="without it"),
    pytest.param("def f(a):\n  if a.can_plan(): a.plan()", [], id="a call"),
    pytest.param("if a.can_plan: a.plan()", [], id="outside of all functions"),
    pytest.param("def f(can_plan):\n  if can_plan: plan()", [], id="a bare name"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PERMISSIONS)
def test_a_permission_is_an_attribute_of_the_receiver_that_has_to_be_true(
    text: str, expected: list[str]
) -> None:
    """The engine tests it of the same object that it makes the call of."""
    assert [*_site(text).permissions] == expected


COMPARING = [
    pytest.param("def f(x):\n  if 'a' in signature(x.plan).parameters: x.plan(a=1)", True,
                 id="looks at the signature"),
    pytest.param("def f(x):\n  if supports_kw(x.plan, 'a'): x.plan(a=1)", True, id="asks a helper"),
    pytest.param("def f(x): x.plan(a=1)", False, id="looks at nothing"),
    pytest.param("x.plan(a=1)", False, id="outside of all functions"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), COMPARING)
def test_a_caller_may_look_at_the_signature_before_it_calls(text: str, *, expected: bool) -> None:
    """Its call need not fit then."""
    assert _site(text).compares_signatures is expected


CATCHING = [
    pytest.param("TypeError", "x.plan()", True, id="another form of it"),
    pytest.param("(KeyError, TypeError)", "return x.plan(1)", True, id="one of several errors"),
    pytest.param("KeyError", "x.plan()", False, id="another error"),
    pytest.param("TypeError", "x.stop()", False, id="another call"),
    pytest.param("TypeError", "raise", False, id="no call"),
]


@pytest.mark.parametrize(("error", "handler", "expected"), CATCHING)
def test_a_caller_may_try_one_form_and_then_another(
    error: str, handler: str, *, expected: bool
) -> None:
    """A handler of `TypeError` has the older form of the same call."""
    text = f"def f(x):\n  try: x.plan(a=1)\n  except {error}: {handler}"

    assert any(each.compares_signatures for each in _sites(text)) is expected


def test_a_call_beside_a_try_is_not_tried() -> None:
    """The handler catches the errors of what stands in the `try` alone."""
    text = """
    def f(x):
        try: x.stop()
        except TypeError: x.stop()
        x.plan(a=1)
    """

    assert not _site(text).compares_signatures
