"""The classes that something may make instances of."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.mentions import mentioned
from tests.unit.compatibility.pairs import module_of, pair_of

MENTIONED = [
    pytest.param("A()", True, id="called"),
    pytest.param("m.A()", True, id="called of a module"),
    pytest.param("register('a', A)", True, id="given"),
    pytest.param("def f(): return A", True, id="returned"),
    pytest.param("@register\nclass A: ...", True, id="decorated"),
    pytest.param("class B(A): ...", True, id="a base"),
    pytest.param("x = 'plugin.m.A'", True, id="the end of a path"),
    pytest.param("x = 'plugin.m:A'", True, id="the end of an entry point"),
    pytest.param("class A: ...", False, id="defined"),
    pytest.param("x = A.name", False, id="of which an attribute is read"),
    pytest.param("A = None", False, id="assigned"),
    pytest.param("x = 'A'", False, id="a word"),
    pytest.param("x: A = None", False, id="the annotation of a variable"),
    pytest.param("def f(x: A, y): ...", False, id="the annotation of a parameter"),
    pytest.param("def f() -> A: ...", False, id="the annotation of a result"),
    pytest.param("async def f() -> list[A]: ...", False, id="in an annotation"),
    pytest.param("async def f(): ...", False, id="not at all"),
]


@pytest.mark.parametrize(("text", "expected"), MENTIONED)
def test_a_class_that_is_used_as_a_value_may_have_instances(text: str, *, expected: bool) -> None:
    """Annotations, and reads of its attributes, make none."""
    module = module_of(pair_of({}, {"m": text}))

    assert ("A" in mentioned([module])) is expected
