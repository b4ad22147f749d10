"""The order of a class's bases, compared with Python's, and what classes set."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import product
from textwrap import indent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.source.statements import Stated, StatedValue, live_statements
from tests.unit.engines.source.trees import class_of, codes_of, index_of, module_of
from tests.unit.engines.tables import table


def _order(index: Index, definition: ClassDef) -> list[str]:
    """List the paths of a class's order, the package's name left out."""
    order = Classes(index).order(definition)
    return [base.path.removeprefix("engine.") for base in order]


@st.composite
def hierarchies(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    """Draw classes, each with bases among those before it, and some of Python's own."""
    classes: list[tuple[str, list[str]]] = []
    for number in range(draw(st.integers(1, 7))):
        known = [name for name, _ in classes]
        bases = draw(st.lists(st.sampled_from([*known, "ABC"]), max_size=3, unique=True))
        name = draw(st.sampled_from([f"C{number}", *known[:1]]))
        classes.append((name, bases))
    return classes


@settings(max_examples=300, deadline=None)
@given(classes=hierarchies())
def test_order_is_pythons(classes: list[tuple[str, list[str]]]) -> None:
    """For any classes, the order is `__mro__`, or both say that there is none."""
    names: dict[str, Any] = {"__name__": "m"}
    text = "from abc import ABC\n"
    exec(text, names)  # noqa: S102 - our own text
    for number, (name, bases) in enumerate(classes):
        line = f"class {name}({', '.join(bases)}): n = {number}\n"
        text += line
        try:
            exec(line, names)  # noqa: S102 - our own generated text
        except TypeError:
            break
    index = index_of(m=text)
    last = module_of(index).classes[-1]
    has_order = names.get(last.name) is not None and names[last.name].__dict__.get("n") == number

    order = Classes(index).order(last)

    assert ("engine-bases-inconsistent" in codes_of(index)) != has_order
    if has_order:
        mro = [each for each in names[last.name].__mro__ if each is not object]
        assert [base.path.rpartition(".")[2] for base in order] == [each.__name__ for each in mro]
        own = [base.node.lineno - 2 for base in order if isinstance(base, ClassDef)]
        assert own == [each.n for each in mro if "n" in vars(each)]


@table("source_classes", "bases_are_found_across_files_and_functions")
def test_bases_are_found_across_files_and_functions(text: str, order: list[str]) -> None:
    """A base is what its name means where and when the class statement runs."""
    index = index_of(m=text, n="class A: pass\nclass B: pass")

    assert _order(index, class_of(index, "A")) == order


@table("source_classes", "base_that_is_not_known_is_a_problem")
def test_base_that_is_not_known_is_a_problem(text: str, message: str) -> None:
    """What cannot be followed is reported once, and the class is still read."""
    index = index_of(m=text, n="")
    classes = Classes(index)

    orders = [classes.order(each) for each in module_of(index).classes]

    assert [order[0] for order in orders] == module_of(index).classes
    assert [problem.message for problem in index.problems] == [message]


def test_classes_of_a_circle_are_a_problem() -> None:
    """Two classes that are each other's base are read, and reported."""
    index = index_of(m="from .n import B\nclass A(B): pass", n="from .m import A\nclass B(A): pass")

    order = _order(index, class_of(index, "A"))

    assert (order, codes_of(index)) == (["m.A", "n.B"], ["engine-bases-inconsistent"])


def test_class_that_is_defined_again_always_is_no_problem() -> None:
    """Where the later one of two classes always runs, nothing depends on a condition."""
    index = index_of(m="class A: pass\nclass A: pass\nclass B(A): pass")

    order = Classes(index).order(class_of(index, "B"))

    assert [base.at for base in order if isinstance(base, ClassDef)] == [
        "engine/m.py:3",
        "engine/m.py:2",
    ]
    assert index.problems == ()


def test_classes_below_one_another_without_end_are_a_problem() -> None:
    """More classes in a row than Python's stack can take are reported, and reading ends."""
    text = "class C0: pass\n" + "".join(f"class C{n}(C{n - 1}): pass\n" for n in range(1, 2000))
    index = index_of(m=text)

    order = Classes(index).order(module_of(index).classes[-1])

    assert (len(order), codes_of(index)) == (100, ["engine-bases-inconsistent"])


def test_descends_is_of_a_class_above() -> None:
    """A class descends from its bases and theirs, and not from itself."""
    index = index_of(m="class A: pass\nclass B(A): pass\nclass C(B): pass")
    classes, last = Classes(index), class_of(index, "C")

    paths = ("engine.m.A", "engine.m.B", "engine.m.C")

    assert [classes.descends(last, path) for path in paths] == [True, True, False]


NAMES = ("x", "y")


def _attributes(index: Index) -> Attributes:
    return Attributes(Classes(index), NAMES)


def _stated(text: str, name: str = "x", **others: str) -> Stated | None:
    """Say what the class A of a module holds."""
    index = index_of(m=text, **others)
    return _attributes(index).stated(class_of(index, "A"), name)


def _words(text: str, name: str = "x", **others: str) -> str:
    stated = _stated(text, name, **others)
    return stated.words if stated else ""


@st.composite
def _statements(draw: st.DrawFn, targets: list[str], calls: list[str], depth: int = 2) -> str:
    """Write a body that gives names constants, calls methods, branches and may return."""
    lines = ["pass"]
    for kind in draw(st.lists(st.sampled_from(["=", "=", "|=", "&=", "call", "if"]), max_size=4)):
        test = draw(st.sampled_from(["a", "b", "not c", "a and b", "b or c"]))
        value = draw(st.sampled_from(["True", "False", f"True if {test} else False", test]))
        target = draw(st.sampled_from(targets))
        if kind == "if" and depth:
            inner = draw(_statements(targets, calls, depth - 1))
            leaves = draw(st.sampled_from(["", "\nreturn"])) if calls else ""
            lines.append(f"if {test}:\n{indent(inner + leaves, '    ')}")
        elif kind == "call" and calls:
            lines.append(draw(st.sampled_from(calls)))
        elif kind in {"|=", "&="}:
            lines.append(f"{target} {kind} {test}" if calls else f"{target} = {value}")
        else:
            lines.append(f"{target} = {value}")
    return "\n".join(lines)


@st.composite
def _programs(draw: st.DrawFn) -> str:
    """Write classes below one another, with constructors and methods that call each other."""
    text = "class C0:\n    x = False\n    y = True\n"
    text += "    def __init__(self): pass\n    def f(self): pass\n"
    for number in range(1, draw(st.integers(2, 5))):
        below = [f"C{n}" for n in range(number)]
        bases = draw(st.lists(st.sampled_from(below), min_size=1, max_size=2, unique=True))
        base = bases[0]
        inits = [
            "super().__init__()",
            f"super(C{number}, self).__init__()",
            f"{base}.__init__(self)",
        ]
        own = draw(_statements(["x", "y", "z"], []))
        text += f"class C{number}({', '.join(bases)}):\n{indent(own, '    ')}\n"
        if draw(st.booleans()):
            init = draw(_statements(["self.x", "self.y"], [*inits, "self.f()"]))
            text += indent(f"def __init__(self):\n{indent(init, '    ')}\n", "    ")
        if draw(st.booleans()):
            method = draw(_statements(["self.x", "self.y"], ["super().f()", f"{base}.f(self)"]))
            text += indent(f"def f(self):\n{indent(method, '    ')}\n", "    ")
    return text


def _held(cases: list[StatedValue], values: dict[str, object]) -> object:
    """Give the value of the last case that holds."""
    held = [case for case in cases if eval(condition(case.guards) or "True", dict(values))]  # noqa: S307 - our own text
    return eval(ast.unparse(held[-1].value), dict(values))  # noqa: S307 - our own text


@settings(max_examples=100, deadline=None)
@given(text=_programs())
def test_instances_hold_what_python_gives_them(text: str) -> None:
    """For each truth of the conditions, the last case that holds is the instance's value."""
    index = index_of(m=text)
    attributes, last = _attributes(index), text.count("class ") - 1
    definition = class_of(index, f"C{last}")
    stated = {name: attributes.stated(definition, name) for name in NAMES}
    calls_once = "once f() has run"

    for truths in product([False, True], repeat=3):
        values: dict[str, object] = dict(zip("abc", truths, strict=True))
        names: dict[str, Any] = dict(values)
        try:
            exec(text, names)  # noqa: S102 - our own generated text
        except TypeError:  # the bases have no order
            return
        made = names[f"C{last}"]()
        for name, each in stated.items():
            assert each is not None
            ran = Stated(tuple(s for s in each.statements if calls_once not in condition(s.guards)))
            assert _held(ran.values, values) == getattr(made, name)
            assert _held(ran.truths, values) == getattr(made, name)


@table("source_attributes", "statements_have_the_words_of_the_source")
def test_statements_have_the_words_of_the_source(text: str, words: str) -> None:
    """What is left standing of a name is written as the source has it."""
    base = "class B:\n    x = True\n    x = False\n    def __init__(self):\n        self.x = 3\n"

    actual = _words(text, n=base if "n.B" in text else "class B:\n    x = True\n    x = False\n")

    assert actual == words


def test_statement_says_where_it_stands() -> None:
    """The last statement decides; the first is certain if it always runs."""
    stated = _stated("class A:\n    x = 1\n    if a:\n        x = 2\n")

    assert stated is not None
    places = [(each.at, each.is_certain) for each in stated.statements]
    assert places == [("engine/m.py:2", True), ("engine/m.py:4", False)]


def test_statement_that_never_runs_is_left_out() -> None:
    """A statement under a condition that is always false does not stand."""
    stated = _stated("class A:\n    x = 1\n")

    assert stated is not None
    never = replace(stated.last, guards=(ast.Constant(value=False),))
    assert live_statements([stated.last, never]) == [stated.last]


@pytest.mark.parametrize("line", ["if a:\n        x = 1", "x |= 1"])
def test_statement_that_may_keep_the_earlier_value_is_not_certain(line: str) -> None:
    """A statement that does not always run, or adds to another, is not certain."""
    stated = _stated(f"class A:\n    {line}\n")

    assert stated is not None
    assert not stated.last.is_certain


def test_methods_are_found_in_the_order_of_bases() -> None:
    """A method is the first class's that has it, and `super()` finds the next one's."""
    text = """\
        class B:
            def f(self): pass
        class A(B):
            if a:
                def f(self): pass
            @property
            def g(self): pass
            @g.deleter
            def g(self): pass
    """
    index = index_of(m=text)
    classes, one = Classes(index), class_of(index, "A")
    other = class_of(index, "B")

    found = [classes.definer(one, "f"), classes.definer(one, "f", after=one)]

    assert found == [one, other]
    assert classes.definer(one, "f", after=other) is None
    assert {name: node.lineno for name, node in one.methods.items()} == {"f": 5, "g": 7}


def test_calls_without_end_end() -> None:
    """Methods that call each other in a long row, or twice each, do not hold up the reading."""
    row = "".join(f"    def f{n}(self):\n        self.f{n + 1}()\n" for n in range(900))
    twice = "".join(
        f"    def g{n}(self):\n        self.g{n + 1}()\n        self.g{n + 1}()\n"
        for n in range(50)
    )
    init = "    def __init__(self):\n        self.f0()\n        self.g0()\n"

    words = _words(
        f"class A:\n    x = 1\n{init}{row}{twice}    def g50(self):\n        self.x = 2\n"
    )

    assert words.startswith("x = ")


def _written(cases: list[StatedValue]) -> list[tuple[str, str]]:
    return [(ast.unparse(case.value), condition(case.guards)) for case in cases]


def test_values_take_statements_apart() -> None:
    """`|=` is a case of truth, `&=` one of its lack; functions and other signs are none."""
    stated = _stated(
        "class A:\n    def x(self): pass\n    if d: x = 1 if a else f(b)\n"
        "    x |= b\n    x &= c\n    x += 1\n"
    )
    assert stated is not None

    last = [("True", "b"), ("False", "not c")]
    assert _written(stated.values) == [("1", "d and a"), ("f(b)", "d and (not a)"), *last]
    assert _written(stated.truths) == [
        ("1", "d and a"),
        ("False", "d and (not a)"),
        ("True", "d and (not a) and f(b)"),
        *last,
    ]


@table("source_attributes", "cases_that_constants_decide_are_certain")
def test_cases_that_constants_decide_are_certain(lines: str, cases: list[tuple[str, str]]) -> None:
    """What a constant decides is a case without guards, or none."""
    stated = _stated(f"class A:\n    {lines}\n")
    assert stated is not None

    assert _written(stated.values) == cases
