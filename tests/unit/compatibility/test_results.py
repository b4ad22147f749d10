"""What a plugin's functions return, beside what an engine makes of it."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.results import results
from tests.unit.compatibility.pairs import function_of, pair_of


def _why(own: str, base: str | None, engine: str) -> list[str]:
    """Say what is wrong with a function `plan` that the engine calls."""
    text = "" if base is None else base
    pair = pair_of({"m": engine, "base": text}, {"m": own})
    before = None if base is None else function_of(pair, "plan", "engine.base")
    found = results(
        pair,
        "plan",
        function_of(pair, "plan"),
        [*pair.sites("plan")],
        None if before is None else before.node,
        function_of(pair, "run", "engine.m").module,
    )
    return [each.why for each in found]


UNPACKED = [
    pytest.param("return 1, 2", "a, b = x.plan()", [], id="as many"),
    pytest.param("return 1, 2, 3", "a, b = x.plan()", ["returns 3 values; run unpacks 2"],
                 id="more"),
    pytest.param("if x: return 1, 2, 3\n  return 1,", "a, b = x.plan()",
                 ["returns 1 or 3 values; run unpacks 2"], id="never as many"),
    pytest.param("if x: return 1, 2, 3\n  return 1, 2", "a, b = x.plan()", [], id="maybe as many"),
    pytest.param("return 1, 2, 3", "a = x.plan(); b, *c = x.plan()", [], id="not unpacked"),
    pytest.param("return y", "a, b = x.plan()", [], id="of unknown length"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "call", "expected"), UNPACKED)
def test_a_function_returns_as_many_values_as_the_engine_unpacks(
    body: str, call: str, expected: list[str]
) -> None:
    """One length that it may return has to be the engine's."""
    assert _why(f"def plan():\n  {body}", None, f"def run(x):\n  {call}") == expected


FITTING = [
    pytest.param("int", "int", id="the same"),
    pytest.param("int", "'int'", id="as a text"),
    pytest.param("int", "Any", id="anything"),
    pytest.param("Any", "int", id="not known"),
    pytest.param("None", "Optional[int]", id="nothing, where it may be"),
    pytest.param("None", "int | None", id="one of two"),
    pytest.param("int", "object", id="an object"),
    pytest.param("Plan", "int", id="a class that may derive from a scalar"),
    pytest.param("tuple[int, str]", "tuple[str, int]", id="as many elements"),
    pytest.param("tuple[int, int, int]", "tuple[int, ...]", id="any number of elements"),
    pytest.param("tuple[Tensor, ...]", "tuple[Tensor, Tensor]", id="elements of a class"),
    pytest.param("tuple[int, ...]", "tuple[int, Tensor]", id="elements that are scalars"),
    pytest.param("tuple[int, int]", "list[int]", id="a list"),
    pytest.param("tuple[int]", "tuple[int]", id="one element"),
]  # fmt: skip
OTHERS = [
    pytest.param("None", "int", id="nothing for a number"),
    pytest.param("bool", "str | int", id="none of two"),
    pytest.param("tuple[int, int]", "tuple[int, int, int]", id="fewer elements"),
    pytest.param("Tuple[int, int]", "tuple[int, int, int]", id="fewer elements, of typing"),
    pytest.param("tuple[Tensor, ...]", "tuple[Tensor, float]", id="no scalar among them"),
]


@pytest.mark.parametrize(("own", "wanted"), FITTING)
def test_an_annotation_may_say_it_in_other_words(own: str, wanted: str) -> None:
    """Only a scalar in the place of something else, or other tuples, is wrong."""
    assert _why(f"def plan() -> {own}: ...", f"def plan() -> {wanted}: ...", RUN) == []


@pytest.mark.parametrize(("own", "wanted"), OTHERS)
def test_an_annotation_of_another_value_is_found(own: str, wanted: str) -> None:
    """The engine uses the result as the base's annotation says."""
    found = _why(f"def plan() -> {own}: ...", f"def plan() -> {wanted}: ...", RUN)

    assert found == [f"returns {own}; the engine takes {wanted}"]


RUN = "def run(x):\n  return x.plan()"


def test_another_name_for_a_type_is_not_compared() -> None:
    """It may be of texts, and a class is what it says."""
    own, base = "def plan() -> str: ...", "def plan() -> Kind: ..."

    assert _why(own, base, f"Kind = Literal['a', 'b']\n{RUN}") == []
    assert _why(own, base, f"Kind = str\n{RUN}") == []
    assert _why(own, base, f"class Kind: ...\n{RUN}") == ["returns str; the engine takes Kind"]


USES = [
    pytest.param(RUN, True, id="by a call"),
    pytest.param("def run(x):\n  x.plan()", False, id="not at all"),
    pytest.param("def run(x):\n  x.call_all('plan')", True, id="by the text of its name"),
]


@pytest.mark.parametrize(("engine", "is_found"), USES)
def test_another_value_counts_where_the_engine_uses_it(engine: str, *, is_found: bool) -> None:
    """A result that nothing is done with may be any."""
    found = _why("def plan() -> None: ...", "def plan() -> int: ...", engine)

    assert bool(found) is is_found


@pytest.mark.parametrize(
    ("own", "base"),
    [("", " -> int"), (" -> None", ""), (" -> None", None)],
    ids=["the plugin's", "the base's", "no base"],
)
def test_a_function_without_an_annotation_is_not_compared(own: str, base: str | None) -> None:
    """What it returns, only running code knows."""
    text = None if base is None else f"def plan(){base}: ..."

    assert _why(f"def plan(){own}: ...", text, RUN) == []
