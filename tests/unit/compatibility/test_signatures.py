"""Which calls fit which parameters, compared with Python's own answer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.compatibility.signatures import (
    Arguments,
    Signature,
    inner_nodes,
    is_generator,
    result_lengths,
)
from tests.unit.compatibility.pairs import expression, function

NAMES = ("a", "b", "c", "d")


def _signature(parameters: str, *, is_bound: bool = False) -> Signature:
    return Signature.of(function(f"def f({parameters}): ..."), is_bound=is_bound)


def _arguments(given: str) -> Arguments:
    call = expression(f"f({given})")
    assert isinstance(call, ast.Call)
    return Arguments.of(call)


def _fault(parameters: str, given: str) -> str | None:
    return _arguments(given).fault(_signature(parameters))


@st.composite
def _parameters(draw: st.DrawFn) -> str:
    """Write the parameters of a function, of every kind that Python has."""
    ends = sorted(draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    first, middle, last = NAMES[: ends[0]], NAMES[ends[0] : ends[1]], NAMES[ends[1] :]
    last = last[: draw(st.integers(0, len(last)))]
    num_required = draw(st.integers(0, len(first + middle)))
    words = [name if at < num_required else f"{name}=0" for at, name in enumerate(first + middle)]
    if first:
        words.insert(len(first), "/")
    takes_more = draw(st.booleans())
    words += ["*args"] * takes_more + ["*"] * (bool(last) and not takes_more)
    words += [name if draw(st.booleans()) else f"{name}=0" for name in last]
    words += ["**kwargs"] * draw(st.booleans())
    return ", ".join(words)


def _takes(parameters: str, given: str, **names: object) -> bool:
    """Return whether Python takes a call; `inspect` errs on a default that has no name."""
    try:
        exec(f"def f({parameters}): ...\nf({given})", {**names})  # noqa: S102 - our own text
    except TypeError:
        return False
    return True


GIVEN = st.tuples(
    st.integers(0, 5), st.lists(st.sampled_from([*NAMES, "z"]), unique=True, max_size=4)
)


@settings(max_examples=200)
@given(_parameters(), GIVEN)
def test_a_call_has_a_fault_where_python_raises(
    parameters: str, given: tuple[int, list[str]]
) -> None:
    """Every call without unpacked arguments is taken, or not, as Python does it."""
    num_positional, names = given
    words = ", ".join(["1"] * num_positional + [f"{name}=2" for name in names])

    assert (_fault(parameters, words) is None) == _takes(parameters, words), words


@settings(max_examples=100)
@given(_parameters(), GIVEN, st.sampled_from([["*seq"], ["**keys"], ["*seq", "**keys"]]))
def test_a_call_that_unpacks_has_a_fault_only_where_nothing_unpacked_helps(
    parameters: str, given: tuple[int, list[str]], unpacked: list[str]
) -> None:
    """What is unpacked may be of any length, and have any keys."""
    num_positional, names = given
    words = [*["1"] * num_positional, *[f"{name}=2" for name in names], *unpacked]
    text = ", ".join(sorted(words, key=lambda each: (each.startswith("**"), "=" in each)))

    if _fault(parameters, text) is not None:
        assert not any(_takes(parameters, text, **each) for each in _unpacked())


def _unpacked() -> Iterator[dict[str, object]]:
    subsets = chain.from_iterable(combinations(NAMES, num) for num in range(len(NAMES) + 1))
    return (
        {"seq": (0,) * num, "keys": dict.fromkeys(keys, 0)} for keys in subsets for num in range(5)
    )


FAULTS = [
    pytest.param("a", "1, 2", "takes at most 1 arguments by position, and gets 2", id="too many"),
    pytest.param("", "1", "takes no arguments by position, and gets 1", id="takes none"),
    pytest.param("*, a", "1", "takes no arguments by position, and gets 1", id="by name alone"),
    pytest.param("a", "a=1, z=2, b=3", "takes no 'b', 'z'", id="unknown names"),
    pytest.param("a, /", "a=1", "takes no 'a'", id="by position alone"),
    pytest.param("a, b", "1, a=2", "gets 'a' by position and by name", id="twice"),
    pytest.param("a, b, *, c", "1", "needs 'b', 'c', and does not get it", id="missing"),
    pytest.param(
        "a, /, **kwargs", "a=1", "needs 'a', and does not get it", id="its name goes to kwargs"
    ),
    pytest.param("a, *, b", "*x", "needs 'b', and does not get it", id="no sequence has names"),
    pytest.param("a, /, b", "**x", "needs 'a', and does not get it", id="no mapping has places"),
    pytest.param(
        "a", "1, 2, *x", "takes at most 1 arguments by position, and gets 2", id="and more"
    ),
]
FITS = [
    pytest.param("a, b=1", "1", id="a default"),
    pytest.param("*args, **kwargs", "1, 2, x=3", id="takes all"),
    pytest.param("a, b", "*x", id="a sequence may be long enough"),
    pytest.param("a, b", "**x", id="a mapping may have the names"),
    pytest.param("a, b", "*x, 1", id="a sequence may be empty, or not"),
    pytest.param("a, /, **kwargs", "1, a=2", id="one name, two parameters"),
]


@pytest.mark.parametrize(("parameters", "given", "expected"), FAULTS)
def test_a_fault_names_the_arguments(parameters: str, given: str, expected: str) -> None:
    """What does not fit is said with the names of the parameters."""
    assert _fault(parameters, given) == expected


@pytest.mark.parametrize(("parameters", "given"), FITS)
def test_a_call_that_fits_or_may_has_no_fault(parameters: str, given: str) -> None:
    """None is said where all arguments have a parameter, and all parameters an argument."""
    assert _fault(parameters, given) is None


def test_a_bound_method_has_no_self() -> None:
    """The first parameter of a method that is bound is given by Python."""
    bound = _signature("self, a, /, b", is_bound=True)

    assert str(bound) == "(a, b)"
    assert _arguments("1, b=2").fault(bound) is None


@pytest.mark.parametrize(
    "parameters", ["a, b=…", "a, *args, b", "a, *, b, c=…, **kwargs", "*args, **kwargs", "*, b", ""]
)
def test_a_signature_is_written_as_in_source(parameters: str) -> None:
    """A default is an ellipsis, for its value does not matter."""
    assert str(_signature(parameters.replace("…", "0"))) == f"({parameters})"


def test_arguments_are_written_as_in_source() -> None:
    """Names come sorted; of what is unpacked, only the stars are written."""
    assert str(_arguments("x.a, *rest, c=1, b=2, **more")) == "(x.a, *…, b=…, c=…, **…)"


MISPLACED = [
    pytest.param("a, b", "b, a", "gets b as a", id="swapped"),
    pytest.param("a, new, b", "x.a, self.b", "gets self.b as new", id="one put in the middle"),
    pytest.param("a, b", "a, b", None, id="each in its place"),
    pytest.param("a, b", "x, y", None, id="other names"),
    pytest.param("a, b", "b_of_a, b", None, id="its words have both names"),
    pytest.param("a, b", "b or a, x", None, id="an expression"),
    pytest.param("b, a", "b, b", None, id="the parameter has got its own"),
    pytest.param("a, *args", "a, b", None, id="no parameter of that name"),
    pytest.param("a, b", "*x, b", None, id="its place depends on a sequence"),
    pytest.param("a, b", "b, *x", "gets b as a", id="before a sequence"),
]


@pytest.mark.parametrize(("parameters", "given", "expected"), MISPLACED)
def test_an_argument_is_misplaced_where_its_name_is_another_parameters(
    parameters: str, given: str, expected: str | None
) -> None:
    """An argument that a parameter was put in front of goes to another one, without an error."""
    assert _arguments(given).misplaced(_signature(parameters)) == expected


def test_arguments_by_position_have_parameters() -> None:
    """Those behind an unpacked sequence go to parameters that no text tells."""
    signature = _signature("a, b, *args, c")

    assert _arguments("1, 2, 3, c=4").parameters(signature) == ("a", "b")
    assert _arguments("1, *x, 3").parameters(signature) == ("a",)


RESULTS = [
    pytest.param("return 1, 2", {2}, id="a pair"),
    pytest.param("if x:\n  return 1, 2\n return 1, 2, 3", {2, 3}, id="two lengths"),
    pytest.param("if x:\n  return 1, 2\n return ()", {0, 2}, id="none of them"),
    pytest.param("if x:\n  return 1, 2\n return y", set(), id="one that is not written out"),
    pytest.param("return 1, *y", set(), id="unpacked"),
    pytest.param("return", set(), id="nothing"),
    pytest.param("yield 1\n return 1, 2", set(), id="a generator"),
    pytest.param("def g(): yield 1\n return 1, 2", {2}, id="a generator in it"),
]


@pytest.mark.parametrize(("body", "expected"), RESULTS)
def test_result_lengths_are_those_of_written_tuples(body: str, expected: set[int]) -> None:
    """A function's results have a length where each of them is a tuple without stars."""
    assert result_lengths(function(f"def f(x, y):\n {body}")) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param("x = yield", True, id="yields"),
        pytest.param("if x:\n  yield from x", True, id="in a branch"),
        pytest.param("return x", False, id="returns"),
        pytest.param("class A:\n  def g(self): yield 1", False, id="a method in it yields"),
        pytest.param("return lambda: (yield)", False, id="a lambda in it yields"),
    ],
)
def test_a_generator_yields_in_its_own_body(body: str, expected: bool) -> None:
    """What inner functions yield is theirs."""
    assert is_generator(function(f"def f(x):\n {body}")) is expected


def test_inner_nodes_leave_out_inner_bodies() -> None:
    """A function in a body is one of its nodes; what is in that function is not."""
    body = function("def f():\n  x = 1\n  def g(): y = 2\n")

    names = {node.id for node in inner_nodes(body) if isinstance(node, ast.Name)}

    assert names == {"x"}
