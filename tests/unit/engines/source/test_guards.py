"""Under which conditions statements run, compared with Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import product
from textwrap import dedent, indent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.engines.source.guards import condition, conditions, guarded, negated, returns
from tests.unit.engines.source.trees import function_of, index_of
from tests.unit.engines.tables import table

TESTS = ("a", "b", "not c", "a and b", "b or c", "not (a or c)", "k == 1", "a if b else c", "True")


def _guarded(text: str) -> list[tuple[str, str]]:
    """List each statement of a body with its condition."""
    body = ast.parse(dedent(text)).body
    return [(ast.unparse(node), condition(guards)) for guards, node in guarded(body)]


@st.composite
def _bodies(draw: st.DrawFn, depth: int = 3) -> str:
    """Write a body of marks, branches and ways to leave."""
    kinds = ["mark", "mark", "return", "raise", "if", "elif", "with", "match", "try"]
    inner = _bodies(depth=depth - 1)
    lines = []
    for kind in draw(st.lists(st.sampled_from(kinds if depth else kinds[:4]), max_size=4)):
        test, other = draw(st.sampled_from(TESTS)), draw(st.sampled_from(TESTS))
        match kind:
            case "if" | "elif":
                lines.append(f"if {test}:\n{_in(draw(inner))}")
                lines += [f"elif {other}:\n{_in(draw(inner))}"] if kind == "elif" else []
                lines += [f"else:\n{_in(draw(inner))}"] if draw(st.booleans()) else []
            case "with":
                lines.append(f"with held:\n{_in(draw(inner))}")
            case "try":
                lines.append(f"try:\n{_in(draw(inner))}\nfinally:\n    mark(NUMBER)")
            case "match":
                patterns = draw(st.permutations(["0", "1", f"1 if {test}", "None", "_"]))
                chosen = [each for each in patterns[:3] if each != "_"] + ["_"] * draw(
                    st.booleans()
                )
                cases = "".join(f"case {each}:\n{_in(draw(inner))}\n" for each in chosen or ["2"])
                lines.append(f"match k:\n{_in(cases)}")
            case _:
                lines.append({"mark": "mark(NUMBER)", "raise": "raise Left"}.get(kind, kind))
    return "\n".join(lines) or "pass"


def _in(body: str) -> str:
    return indent(body, "    ")


def _numbered(body: str) -> str:
    parts = body.split("NUMBER")
    numbered = [f"{part}{number}" for number, part in enumerate(parts[:-1])]
    return "".join([*numbered, parts[-1]])


class _Left(Exception):  # noqa: N818 - it is none of a program's
    """A generated body raised."""


def _ran(body: str) -> Iterator[tuple[dict[str, object], list[int]]]:
    """Run a body with each truth of its variables, and list its marks where it does not raise."""
    marks: list[int] = []
    names: dict[str, Any] = {"mark": marks.append, "held": nullcontext(), "Left": _Left}
    exec(f"def run(a, b, c, k):\n{_in(body)}", names)  # noqa: S102 - our own generated text
    for values in product([False, True], [False, True], [False, True], [0, 1, None]):
        marks.clear()
        with suppress(_Left):
            names["run"](*values)
            yield dict(zip(["a", "b", "c", "k"], values, strict=True)), list(marks)


@settings(max_examples=100, deadline=None)
@given(body=_bodies().map(_numbered))
def test_statements_run_where_their_conditions_hold(body: str) -> None:
    """For each truth of the variables, just the statements run whose conditions are true."""
    marks = ((text, when) for text, when in _guarded(body) if text.startswith("mark"))
    stated = [(int(text[5:-1]), compile(when or "True", "", "eval")) for text, when in marks]

    for values, ran in _ran(body):
        predicted = [number for number, when in stated if eval(when, values)]  # noqa: S307 - ours
        assert predicted == ran


@table("source_guards", "statement_has_the_words_of_its_condition")
def test_statement_has_the_words_of_its_condition(text: str, stated: list[tuple[str, str]]) -> None:
    """What is no expression in the source reads like one."""
    assert _guarded(text) == stated


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("".join(f"if a{n}: return\n" for n in range(5000)) + "x", id="branches"),
        pytest.param(
            "match a:\n" + "".join(f" case A{n}(): return\n" for n in range(5000)) + "x", id="cases"
        ),
        pytest.param(
            "if a:\n" + "".join(f" if a{n}: return\n" for n in range(5000)) + "x", id="inner ones"
        ),
    ],
)
def test_many_conditions_are_one(text: str) -> None:
    """Beyond a bound they are not distinguished, so reading stays fast; what follows stays open."""
    *_, last = guarded(ast.parse(text).body)

    assert (ast.unparse(last.value), 0 < len(condition(last.guards)) < 2000) == ("x", True)


@pytest.mark.parametrize(
    ("text", "turned"),
    [("a", "not a"), ("not a", "a"), ("True", "False"), ("a or b", "not (a or b)")],
)
def test_negated_turns_a_condition_over(text: str, turned: str) -> None:
    """A negation is taken off, or put around the whole."""
    assert ast.unparse(negated(ast.parse(text, mode="eval").body)) == turned


def test_conditions_are_single_and_stand_once() -> None:
    """`a and b` is two conditions; a condition that is there twice is one, and True is none."""
    guards = [ast.parse(text, mode="eval").body for text in ("a and b", "b", "True", "a or b")]

    parts = [ast.unparse(each) for each in conditions(guards)]

    assert (parts, condition(guards)) == (["a", "b", "a or b"], "a and b and (a or b)")


def test_returns_are_listed_with_their_conditions() -> None:
    """Each value is a case, a conditional expression two; a bare return is none."""
    text = """\
        def f(a):
            if a:
                return 1
            if b:
                return
            return 2 if c else 3
    """
    function = function_of(index_of(m=text), "f")

    cases = [(ast.unparse(case.value), condition(case.guards)) for case in returns(function)]

    assert cases == [
        ("1", "a"),
        ("2", "not a and (not b) and c"),
        ("3", "not a and (not b) and (not c)"),
    ]
