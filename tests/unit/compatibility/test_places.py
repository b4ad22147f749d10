"""Where the nodes of a plugin's file run, and what has to hold for each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from textwrap import dedent, indent

import pytest

from backend_caps.compatibility.places import Place, Places, caught_by
from backend_caps.engines.source.guards import condition
from tests.unit.compatibility.pairs import module_of, pair_of

ENGINE = {"__init__": "class Old: ...", "old": "x = 1"}
"""What hasattr and imports find."""
OLD, NEW, OPEN = "hasattr(engine, 'Old')", "hasattr(engine, 'New')", "is_set()"
"""A condition that holds, one that does not, and one that only running code decides."""


def _places(text: str) -> Iterator[Place]:
    pair = pair_of(ENGINE, {"m": f"import engine\n{text}"})
    return iter(Places(module_of(pair), pair.conditions))


def _marks(text: str) -> list[Place]:
    """List the places of the names `a`, `b` and `c`."""
    places = _places(text)
    return [each for each in places if isinstance(each.node, ast.Name) and each.node.id in "abc"]


def _shown(text: str) -> list[str]:
    """Write the marks that may run, each with its conditions."""
    return [
        f"{name} if {given}" if (given := condition(each.guards)) else name
        for each in _marks(text)
        if isinstance(each.node, ast.Name) and (name := each.node.id)
    ]


BRANCHES = [
    pytest.param(f"if {OLD}: a\nelse: b\nc", ["a", "c"], id="one that holds"),
    pytest.param(f"if {NEW}: a\nelse: b\nc", ["b", "c"], id="one that fails"),
    pytest.param(
        f"if {OPEN}: a\nelse: b\nc", ["a if is_set()", "b if not is_set()", "c"], id="open"
    ),
    pytest.param(f"if not {NEW}: a", ["a"], id="negated"),
    pytest.param(
        f"if {OPEN} and {OLD}: a", ["a if is_set() and hasattr(engine, 'Old')"], id="half open"
    ),
    pytest.param("import typing as t\nif t.TYPE_CHECKING: a\nb", ["b"], id="for type checkers"),
    pytest.param(
        f"if {NEW}: a\nelif {OPEN}: b\nelse: c", ["b if is_set()", "c if not is_set()"], id="elif"
    ),
    pytest.param(f"if a and {OPEN}: b", ["a", "b if a and is_set()"], id="in the test itself"),
]
LEFT = [
    pytest.param(f"if {OLD}: return\na", [], id="it holds"),
    pytest.param(f"if {NEW}: return\na", ["a"], id="it fails"),
    pytest.param(f"if {OPEN}: return\na", ["a if not is_set()"], id="it is open"),
    pytest.param(f"if {OLD}: a\nelse: return\nb", ["a", "b"], id="else, and it holds"),
    pytest.param(f"if {NEW}: a\nelse: raise E\nb", [], id="else, and it fails"),
    pytest.param(
        f"if {OPEN}: a\nelse: return\nb", ["a if is_set()", "b if is_set()"], id="else, and open"
    ),
    pytest.param(f"if {OPEN}: return\nelse: return\na", [], id="both"),
    pytest.param(f"if {OLD}: return\nelse: return\na", [], id="both, and it holds"),
    pytest.param("return a\nb", ["a"], id="without a condition"),
    pytest.param("for x in a:\n  continue\n  b\nc", ["a", "c"], id="one turn of a loop"),
    pytest.param("while a:\n  break\n  b\nelse:\n  c", ["a", "c"], id="a loop"),
]
EXPRESSIONS = [
    pytest.param(f"{OLD} and a", ["a"], id="and, after what holds"),
    pytest.param(f"{NEW} and a", [], id="and, after what fails"),
    pytest.param(f"{OPEN} and a", ["a if is_set()"], id="and, after what is open"),
    pytest.param(f"{OLD} or a", [], id="or, after what holds"),
    pytest.param(f"{NEW} or a", ["a"], id="or, after what fails"),
    pytest.param(f"{OPEN} or a", ["a if not is_set()"], id="or, after what is open"),
    pytest.param(f"a if {OLD} else b", ["a"], id="chosen"),
    pytest.param(f"a if {NEW} else b", ["b"], id="not chosen"),
    pytest.param(f"a if {OPEN} else b", ["a if is_set()", "b if not is_set()"], id="open"),
]
INNER = [
    pytest.param("x = f(a, k=b, *c)", "abc", id="arguments"),
    pytest.param("x = [a for y in b if c]", "abc", id="a comprehension"),
    pytest.param("x = f'{a}' + b[c]", "abc", id="operands"),
    pytest.param("x = lambda y=a, *, z=b: c", "abc", id="a lambda"),
    pytest.param("x: b = a", "a", id="no annotation"),
    pytest.param("x: b\na", "a", id="no annotation alone"),
    pytest.param("@a\ndef f(x: x = b, *, y=c) -> x: ...", "abc", id="a function's head"),
    pytest.param("@a\nclass A(b, metaclass=c): ...", "abc", id="a class's head"),
    pytest.param("with a as x, b: c", "abc", id="with"),
    pytest.param("async def f():\n  async with a: b\n  async for x in c: ...", "abc", id="async"),
    pytest.param("for x in a: b\nelse: c", "abc", id="for"),
    pytest.param("match a:\n  case x if b: c", "abc", id="the guard of a case"),
    pytest.param("match x:\n  case a.X | b(y=c.Y): ...", "abc", id="what a case compares with"),
    pytest.param("try: x\nexcept a: b\nelse: c", "abc", id="what is caught"),
    pytest.param("try: a\nfinally: b", "ab", id="finally"),
    pytest.param("try: a\nexcept* b.E: c", "abc", id="a group"),
    pytest.param("del a, x[b]\nassert c", "abc", id="other statements"),
]


@pytest.mark.parametrize(("text", "expected"), BRANCHES)
def test_a_branch_runs_where_the_engine_does_not_rule_it_out(
    text: str, expected: list[str]
) -> None:
    """A condition that the engine decides is no condition; one that is open is kept."""
    assert _shown(text) == expected


@pytest.mark.parametrize(("text", "expected"), LEFT)
def test_what_stands_after_a_branch_that_leaves_needs_the_other(
    text: str, expected: list[str]
) -> None:
    """Where one branch leaves, what follows runs only under the other."""
    assert _shown(f"def f():\n{indent(text, '  ')}") == expected


@pytest.mark.parametrize(("text", "expected"), EXPRESSIONS)
def test_a_part_of_an_expression_needs_those_before_it(text: str, expected: list[str]) -> None:
    """`and`, `or` and `if` evaluate a part only if those before let it."""
    assert _shown(f"x = f({text})") == expected


@pytest.mark.parametrize(("text", "expected"), INNER)
def test_every_expression_that_runs_is_listed(text: str, expected: str) -> None:
    """Annotations are no expressions that run."""
    assert sorted(_shown(text)) == [*expected]


def test_statements_come_in_the_order_of_the_text() -> None:
    """What a `try` does after an error comes where it is written."""
    text = "try: engine\nexcept E:\n  a\nelse:\n  b\nfinally:\n  while True: c"

    assert _shown(text) == ["a", "b", "c"]


HANDLERS = [
    pytest.param("from engine.old import x", "ImportError", ["b"], id="the import holds"),
    pytest.param("import engine.new", "ImportError", ["a", "b"], id="the import is lost"),
    pytest.param(
        "import other", "ModuleNotFoundError", ["a if except ModuleNotFoundError", "b"],
        id="another's import",
    ),
    pytest.param(
        "import other", "(ImportError, ModuleNotFoundError)",
        ["a if except (ImportError, ModuleNotFoundError)", "b"], id="both errors",
    ),
    pytest.param("import engine.old", "(ImportError, OSError)", ["a", "b"], id="other errors too"),
    pytest.param("import engine.old", "", ["a", "b"], id="all errors"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kinds", "expected"), HANDLERS)
def test_a_handler_of_imports_runs_where_one_is_lost(
    body: str, kinds: str, expected: list[str]
) -> None:
    """A handler that catches nothing but lost imports does not run if none is."""
    assert _shown(f"try: {body}\nexcept {kinds}: a\nb") == expected


def test_a_place_knows_what_catches_its_errors() -> None:
    """The innermost handler comes last; a function's body is caught by those in it alone."""
    text = """
    try:
        with suppress(KeyError), lock:
            a
            def f():
                try: b
                except IndexError: ...
    except OSError:
        c
    """

    caught = [[sorted(caught_by(each)) for each in mark.handlers] for mark in _marks(dedent(text))]

    assert caught == [[["OSError"], ["KeyError"]], [["IndexError"]], []]


def test_a_place_knows_the_functions_and_the_class_around_it() -> None:
    """Functions come innermost first; the class is that of the innermost method."""
    text = """
    class A:
        a
        def f(self):
            def g(): b
    """

    around = [
        ([each.name for each in mark.functions], mark.owner.name if mark.owner else None)
        for mark in _marks(dedent(text))
    ]

    assert around == [([], "A"), (["g", "f"], "A")]


def test_a_statement_is_a_place_of_its_own() -> None:
    """A statement is listed before what is in it, with its file and line."""
    [statement, *inner] = [each for each in _places("a.b = 1\n") if each.at.endswith(":2")]

    assert isinstance(statement.node, ast.Assign)
    assert statement.at == "plugin/m.py:2"
    assert [type(each.node) for each in inner] == [ast.Attribute, ast.Name, ast.Constant]


def test_a_handler_names_all_that_it_catches() -> None:
    """One that names nothing catches everything."""
    [handler, other] = [
        each
        for each in ast.walk(ast.parse("try: x\nexcept (a.E, KeyError): y\nexcept: z"))
        if isinstance(each, ast.ExceptHandler)
    ]

    assert caught_by(handler) == {"a.E", "KeyError"}
    assert caught_by(other) == {"BaseException"}
