"""The classes whose instances functions make, and names that lead elsewhere."""

from __future__ import annotations

from cProfile import Profile
from pstats import Stats
from time import process_time

import pytest

from backend_caps.engines.source.classes import Classes, Factories
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import Heads
from tests.unit.engines.source.trees import class_of, function_of, index_of, module_of, stated_of
from tests.unit.engines.tables import table

OTHER = "class B: pass\ndef make(): return B()\nmade = B()\nC = B\n"


def _made(text: str) -> list[tuple[str, str]]:
    """List what a module's function `f` makes, each with its condition; `lost` has no class."""
    index = index_of(m=text, n=OTHER)
    factories = Factories(Classes(index))
    found = factories.made(FunctionDef(module_of(index), function_of(index, "f")))
    return [
        (made.path.removeprefix("engine.") if made else "lost", condition(guards))
        for guards, made in found
    ]


@table("source_factories", "made_classes_are_followed")
def test_made_classes_are_followed(text: str, made: list[tuple[str, str]]) -> None:
    """Calls, variables and aliases are followed to the classes whose instances come back."""
    assert _made(text) == made


def test_variable_of_another_file_is_read_there() -> None:
    """A name in a value of another module's is that module's, not the function's own."""
    assert _made("from .n import made\ndef f():\n    B = 1\n    return made") == [("n.B", "")]


def test_name_that_is_bound_to_itself_adds_no_class() -> None:
    """`A = A` in one branch leaves the class of the other branch, and nothing that is lost."""
    branches = "    if x:\n        A = B\n    else:\n        A = A\n"

    assert _made(f"from .n import B\ndef f():\n{branches}    return A()") == [("n.B", "x")]


def test_methods_are_followed_in_the_order_of_bases() -> None:
    """`self.make()` is what the class that asks has, not what the method's own class has."""
    text = """\
        from .n import B
        class Base:
            def get(self): return self.make() if x else self.none()
            def make(self): return B()
        class A(Base):
            def make(self): return A()
    """
    index = index_of(m=text, n=OTHER)
    get = class_of(index, "Base").methods["get"]
    factories = Factories(Classes(index))

    found = factories.made(FunctionDef(module_of(index), get, class_of(index, "A")))

    assert [(made and made.name, condition(guards)) for guards, made in found] == [
        ("A", "x"),
        (None, "not x"),
    ]


def test_tables_of_functions_are_followed() -> None:
    """A call of a table's item is one of the function that is known to be there."""
    index = index_of(m="def f(): return T['b']() if x else T['c']()", n=OTHER)
    tables = {"T": {"b": FunctionDef(module_of(index, "n"), function_of(index, "make", "n"))}}
    factories = Factories(Classes(index), tables)

    found = factories.made(FunctionDef(module_of(index), function_of(index, "f")))

    assert [(made and made.name, condition(guards)) for guards, made in found] == [
        ("B", "x"),
        (None, "not x"),
    ]


def test_many_ways_to_a_class_end() -> None:
    """Functions that double the ways at each step do not hold up the reading."""
    text = "".join(f"def f{n}(): return f{n + 1}() if c{n} else f{n + 1}()\n" for n in range(11))

    made = _made(f"class A: pass\ndef f(): return f0()\n{text}def f11(): return A()")

    assert 0 < len(made) <= 2**11


SIZE = 200_000


@table("source_heads", "heads_are_the_class_statements_of_a_text")
def test_heads_are_the_class_statements_of_a_text(
    text: str, found: list[tuple[str, list[str]]]
) -> None:
    """A statement begins its line; its bases are the last words between its brackets."""
    heads = Heads({"m.py": text.encode()}).by_file.get("m.py", [])

    assert [(head.name, sorted(head.bases)) for head in heads] == found


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "row", ["class X[", "class X(", "class X(\n", "class X[a](#\n", "class X((\n", " ", "class "]
)
def test_no_text_makes_heads_slow(row: str) -> None:
    """What looks like many class statements without an end is read once, not once each."""
    text = (row * (SIZE // len(row))).encode()
    start = process_time()

    Heads({"m.py": text}).names_below({"X"})

    assert process_time() - start < 5  # read once: 0.2 s; once each: over 10 s


CLASS = "class A:\n    x = 1\n"


@table("source_elsewhere", "what_is_set_elsewhere_may_be_true")
def test_what_is_set_elsewhere_may_be_true(text: str, line: int) -> None:
    """A name that anything else sets is open: it may be true."""
    words = stated_of(f"{CLASS}{text}\n")

    assert words == f"x = 1; x = True where it is set elsewhere (engine/m.py:{line})"


@table("source_elsewhere", "what_sets_nothing_of_the_class_is_left_out")
def test_what_sets_nothing_of_the_class_is_left_out(text: str) -> None:
    """Reads, and what is set of others, leave a class as it is."""
    assert stated_of(f"{CLASS}{text}\n") == "x = 1"


def test_what_sets_a_base_elsewhere_counts_below_it() -> None:
    """A class has what the file of its base does to the base."""
    base = "class B:\n    x = 1\nclass C: pass\nB.x = 2\nC.x = 2\n"

    words = stated_of("from .n import B\nclass A(B): pass\n", n=base)

    assert words == "x = 1; x = True where it is set elsewhere (engine/n.py:4)"


def test_each_file_says_once_that_it_sets_a_class() -> None:
    """Of several places that set the same of a class the first is reported."""
    words = stated_of(f"{CLASS}a.x = 2\nb.x = 2\nA.x = 2\nA.x = 3\n")

    assert words == (
        "x = 1; x = True where it is set elsewhere (engine/m.py:5); "
        "x = True where it is set elsewhere (engine/m.py:3)"
    )


@pytest.mark.parametrize("row", ["self.x;", "self.x\n        ", "self.x = 1;", "a.x = 1;"])
def test_calls_grow_with_the_text_and_no_faster(row: str) -> None:
    """A text that has the name everywhere is read once: calls grow as the text does."""
    small, large = (_calls_for(row, count) for count in (200, 800))

    assert large / small < 4.4


def _calls_for(row: str, count: int) -> int:
    """Count the calls that read a class of so many rows."""
    text = f"{CLASS}    def __init__(self):\n        {row * count}\n"
    with Profile() as profile:
        words = stated_of(text)
    assert words.startswith("x = 1")
    calls: int = Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls
