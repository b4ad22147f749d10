"""What gives names and attributes their values."""

from __future__ import annotations

import ast

import pytest

from backend_caps.compatibility.bindings import element_of, elements_named, made_by, statements_of
from tests.unit.compatibility.pairs import class_of, expression, function, pair_of

ATTRIBUTES = '''
class Runner:
    """Of a worker."""
    size: int = 1
    self.odd = 2
    def __init__(self, pool):
        self.pool: Pool = pool
        self.name = "a"
        pool.name = "b"
        first = second = 0
        if pool:
            self.size = 2
'''


def test_attributes_are_annotated_in_the_body_or_assigned_in_methods() -> None:
    """Each assignment of `self` counts, with its annotation and its value."""
    pair = pair_of({}, {"m": ATTRIBUTES})

    found = [
        (name, each.annotation and ast.unparse(each.annotation), each.value)
        for name, each in statements_of(class_of(pair, "Runner"))
    ]

    assert [(name, kind, value and ast.unparse(value)) for name, kind, value in found] == [
        ("size", "int", "1"),
        ("pool", "Pool", "pool"),
        ("name", None, "'a'"),
        ("size", None, "2"),
    ]


LOOPS = [
    pytest.param("for x in xs: pass", {"x": ("xs", False)}, id="a loop"),
    pytest.param("[x for x in xs if x]", {"x": ("xs", False)}, id="a comprehension"),
    pytest.param("for i, x in enumerate(xs, 1): pass", {"x": ("xs", False)}, id="enumerated"),
    pytest.param("for k, x in d.items(): pass", {"x": ("d", True)}, id="a value of a mapping"),
    pytest.param(
        "for x, y in zip(xs, ys): pass", {"x": ("xs", False), "y": ("ys", False)}, id="zipped"
    ),
    pytest.param(
        "for i, (x, y) in enumerate(zip(xs, ys)): pass",
        {"x": ("xs", False), "y": ("ys", False)},
        id="zipped and enumerated",
    ),
    pytest.param("for x, y in pairs: pass", {}, id="unpacked"),
    pytest.param("for self.x in xs: pass", {}, id="an attribute"),
    pytest.param("x = xs", {}, id="no loop"),
]


@pytest.mark.parametrize(("text", "expected"), LOOPS)
def test_a_variable_of_a_loop_is_an_element(
    text: str, expected: dict[str, tuple[str, bool]]
) -> None:
    """It is one of what is iterated over, through `enumerate`, `zip` and `items`."""
    found = elements_named(function(f"def f():\n  {text}"))

    assert {name: (ast.unparse(each.of), each.is_value) for name, each in found.items()} == expected


ELEMENTS = [
    pytest.param("list[A]", ["A"], ["A"], id="a list"),
    pytest.param("typing.Sequence[A]", ["A"], ["A"], id="by the module"),
    pytest.param("tuple[A, B]", ["A", "B"], ["A", "B"], id="a tuple"),
    pytest.param("dict[A, B]", ["B"], ["A"], id="a mapping"),
    pytest.param("Optional[list[A]]", ["A"], ["A"], id="optional"),
    pytest.param("list[A] | dict[B, C] | None", ["A", "C"], ["A", "B"], id="either"),
    pytest.param("'list[A]'", ["A"], ["A"], id="a text"),
    pytest.param("'list[A'", [], [], id="a text that cannot be parsed"),
    pytest.param("type[A]", [], [], id="another subscript"),
    pytest.param("A", [], [], id="no container"),
]


@pytest.mark.parametrize(("text", "values", "keys"), ELEMENTS)
def test_a_container_states_its_elements(text: str, values: list[str], keys: list[str]) -> None:
    """Its annotation has those; a mapping's has those of its values and of its keys."""
    found = [
        [ast.unparse(each) for each in element_of(expression(text), is_value=is_value)]
        for is_value in (True, False)
    ]

    assert found == [values, keys]


KINDS = [
    pytest.param("type[A]", "A", id="a type"),
    pytest.param("Type[A]", "A", id="of typing"),
    pytest.param("list[A]", None, id="another"),
    pytest.param("A", None, id="a class"),
]


@pytest.mark.parametrize(("text", "expected"), KINDS)
def test_a_type_makes_what_it_is_of(text: str, expected: str | None) -> None:
    """Only `type[...]` states what a call of it makes."""
    found = made_by(expression(text))

    assert (found and ast.unparse(found)) == expected


def test_what_has_no_annotation_makes_nothing_known() -> None:
    """A value without an annotation may be no class."""
    assert made_by(None) is None
