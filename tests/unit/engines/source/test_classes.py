"""The order of a class's bases, compared with Python's."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import ClassDef
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
    """What cannot be followed is told once, and the class is still read."""
    index = index_of(m=text, n="")
    classes = Classes(index)

    orders = [classes.order(each) for each in module_of(index).classes]

    assert [order[0] for order in orders] == module_of(index).classes
    assert [problem.message for problem in index.problems] == [message]


def test_classes_of_a_circle_are_a_problem() -> None:
    """Two classes that are each other's base are read, and told of."""
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
    """More classes in a row than Python's stack can take are told of, and end."""
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
