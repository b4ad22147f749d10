"""Finding and following names in a tree."""

from __future__ import annotations

import ast
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes, Factories
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import External, FunctionDef, Index, Target, Value
from backend_caps.engines.source.module import ClassDef, Module
from tests.unit.engines.source.trees import (
    bytes_of,
    class_of,
    codes_of,
    function_of,
    index_of,
    module_of,
)
from tests.unit.engines.tables import data, table


def _shown(target: Target) -> str:
    match target:
        case ClassDef() | External():
            return target.path
        case FunctionDef():
            return target.at
        case Value():
            return f"{target.module.path}: {ast.unparse(target.node)}"
        case Module():
            return target.name


def _resolved(index: Index, text: str, module: str = "m") -> list[tuple[str, str]]:
    """List what an expression of a module names, each with its condition."""
    found = index.resolve(ast.parse(text, mode="eval").body, module_of(index, module))
    return [(_shown(target), condition(guards)) for guards, target in found]


BROKEN = [
    pytest.param(b"class Lost(\n", "SyntaxError", id="truncated"),
    pytest.param(b"class Lost(A):\n    x = (1 if 2 else)\n", "SyntaxError", id="newer syntax"),
    pytest.param(b"class Lost(A): x = '\xff'\n", "SyntaxError", id="no UTF-8"),
    pytest.param(b"# coding: none\nclass Lost(A): x = 1\n", "SyntaxError", id="no encoding"),
    pytest.param(b"class Lost(A): x = '\0'\n", "null bytes", id="null bytes"),
    pytest.param(b"class Lost(A): x = " + b"-" * 9999 + b"1\n", "more than 80 deep", id="too deep"),
    pytest.param(b"class Lost(A): x = " + b"(" * 999 + b")" * 999, "parentheses", id="brackets"),
    pytest.param(
        b"if a: pass\n" + b"elif a: pass\n" * 99 + b"class Lost(A): x = 1",
        "it is nested more than 80 deep",
        id="deeper than anybody writes",
    ),
    pytest.param(
        b"class Lost(A): x = 0" + b" + 1" * 99, "it is nested more than 80 deep", id="a long sum"
    ),
]


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_file_that_cannot_be_parsed_is_a_problem(text: bytes, words: str) -> None:
    """A broken file is named with its error and the classes in it, and the rest is read."""
    index = index_of(m=text, n="class A: pass")

    assert index.module("engine.m") is None
    assert (codes_of(index), index.reading(()).num_parsed) == (["engine-file-not-parsed"], 0)
    assert words in index.problems[0].message
    assert class_of(index, "A", "n").at == "engine/n.py:1"


def test_classes_of_a_broken_file_are_named() -> None:
    """What is lost with a file is reported by its names, as far as the text has them."""
    index = index_of(m="class A[T](B):\n    x: = 1\nclass C(D[T]): pass\n")

    index.module("engine.m")

    assert index.problems[0].message.endswith(" Not read: A, C.")


def test_problem_of_a_file_is_reported_once() -> None:
    """However often a broken file is asked for, it is one problem."""
    index = index_of(m="(")

    assert (index.module("engine.m"), index.parse("engine/m.py")) == (None, None)
    assert len(index.problems) == 1


@pytest.mark.parametrize("tail", ["-" * 70 + "1", " + ".join("a" * 75), ".".join("a" * 75)])
def test_nesting_that_is_taken_can_be_written(tail: str) -> None:
    """What is just not too deep can be read and written without an end of the stack."""
    [(guards, meaning)] = module_of(index_of(m=f"if a:\n    x = {tail}\n")).scope["x"]

    assert isinstance(meaning, ast.expr)
    assert (condition(guards), len(ast.unparse(meaning))) == ("a", len(tail))


def test_parsing_warns_of_nothing() -> None:
    """What a linter would say of an engine's text is no matter of ours."""
    index = index_of(m=r"A = '\d'; B = 1 is 1")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert index.module("engine.m") is not None


@table("source_index", "name_is_followed_to_what_it_names")
def test_name_is_followed_to_what_it_names(text: str, found: list[tuple[str, str]]) -> None:
    """Imports, stars, aliases and conditions are followed across files."""
    texts = {"n": "class A: pass\nclass B: pass", "o": "class A: pass", "p": "from .n import A"}
    index = index_of(__init__="", m=text, **texts)

    assert (_resolved(index, "A"), index.problems) == (found, ())


def test_module_is_followed_without_the_package_itself() -> None:
    """A name with dots is followed where the files above it are not read."""
    index = index_of(m="import engine.n", n="class A: pass")

    assert _resolved(index, "engine.n.A") == [("engine.n.A", "")]


def test_package_is_taken_before_a_module_of_its_name() -> None:
    """Of `a/__init__.py` and `a.py`, Python imports the first."""
    files = {"engine/a.py": b"X = int", "engine/a/__init__.py": b"X = str"}
    index = Index(Tree(package="engine", version=None, source="here", files=files))

    assert _resolved(index, "X", "a") == [("builtins.str", "")]


def test_own_part_of_a_package_is_no_circle() -> None:
    """`from . import n` in a package is the module, though it reads like a name of its own."""
    index = index_of(__init__="from . import n", m="from engine import n\nA = n.A", n="A = int")

    assert (_resolved(index, "A"), codes_of(index)) == ([("builtins.int", "")], [])


def test_names_imported_in_a_circle_are_a_problem() -> None:
    """A name that two modules import from each other is nothing, and reported."""
    index = index_of(m="from engine.n import A", n="from engine.m import A")

    assert _resolved(index, "A") == [("engine.m.A", "")]
    assert index.problems[0].message == (
        "engine/m.py: A is imported in a circle: engine.m -> engine.n -> engine.m."
    )


def test_modules_that_import_each_other_are_no_circle() -> None:
    """Two modules may import different names from each other."""
    index = index_of(m="from .n import A\nB = int", n="from .m import B\nA = B")

    assert (_resolved(index, "A"), codes_of(index)) == ([("builtins.int", "")], [])


def test_stars_in_a_circle_end() -> None:
    """Two modules may import all of each other's names; what neither has is not found."""
    index = index_of(m="from .n import *", n="from .m import *\nA = int")

    assert _resolved(index, "A") == [("builtins.int", "")]
    assert (_resolved(index, "B"), codes_of(index)) == ([], [])


def test_star_import_that_cannot_be_followed_is_a_problem() -> None:
    """A name may come from a module that is not in the tree."""
    index = index_of(m="from torch import *\nfrom .n import *", n="A = int")

    assert (_resolved(index, "A"), codes_of(index)) == ([("builtins.int", "")], [])
    assert (_resolved(index, "B"), codes_of(index)) == ([], ["engine-star-import"])


def test_local_names_that_stand_for_each_other_end() -> None:
    """A name of a function's that is made of itself in a circle is what running code knows."""
    index = index_of(m="def f():\n    a = b\n    b = a\n")
    module = module_of(index)

    found = index.resolve(ast.Name(id="a"), module, [module.scope_in(function_of(index, "f"))])

    assert [type(target) for _, target in found] == [Value]


def test_long_chains_of_names_end() -> None:
    """A name that stands for a name that stands for a name is not followed without end."""
    index = index_of(m="\n".join(f"a{n} = a{n + 1}" for n in range(2000)))

    assert _resolved(index, "a0") == [("engine/m.py: a61", "")]


def test_many_ways_to_a_name_end() -> None:
    """Conditions that double the ways at each step do not hold up the reading."""
    chain = "\n".join(f"a{n} = a{n + 1} if c else a{n + 1}" for n in range(50))

    assert len(_resolved(index_of(m=chain), "a0")) < 2000


HEADS = data("source_index")["heads"]


def test_files_of_descendants_are_found_by_their_text() -> None:
    """Every file that may have a class below one is found, without parsing any."""
    index = index_of(**HEADS)

    missing = {f"engine/{name}.py" for name in HEADS} - set(index.heads.files_below({"Root"}))
    assert (missing, index.reading(()).num_parsed) == (
        {"engine/base.py", "engine/other.py", "engine/open.py"},
        0,
    )
    assert {"Root", "A", "B", "C"} < index.heads.names_below({"Root"})


def test_files_are_found_by_their_words() -> None:
    """Files whose text has a word are listed, sorted."""
    index = index_of(b="x = needs", a="y = needs", c="z = 1")

    assert index.containing(b"needs") == ["engine/a.py", "engine/b.py"]


SMALL = '''\
"""A text."""
from engine.n import Base, flag as named
if named:
    class A(Base[int], metaclass=Meta):
        x: bool = True

        def __init__(self, a, *, b=1):
            super().__init__()
            if a and not b:
                self.x |= b > 1
            elif b: return
            for each in (1, 2):
                self.x = each is None or f"{each!r}"
            try: self.y, *self.z = make(self)
            except (E, F) as error: raise
else:
    A = Base
def make(a) -> A:
    match a:
        case {"k": [1, *_]} | A(x=1) if a: return A(1)
        case _: return (lambda q: q)(a), A(2) if a else Base()
'''


def _read_all(index: Index) -> None:
    """Ask for everything that can be asked of a tree."""
    classes = Classes(index)
    attributes = Attributes(classes, ["x", "y", "z"])
    factories = Factories(classes)
    index.heads.files_below({"Base"})
    for path in index.tree.files:
        module = index.parse(path)
        for definition in module.classes if module else ():
            classes.order(definition)
            words = [attributes.stated(definition, name) for name in ("x", "y", "z")]
            assert all(each is None or each.words for each in words)
        for name, meanings in (module.scope if module else {}).items():
            assert module
            index.resolve(ast.Name(id=name), module)
            for _, meaning in meanings:
                if isinstance(meaning, ast.FunctionDef | ast.AsyncFunctionDef):
                    factories.made(FunctionDef(module, meaning))


def test_brackets_of_some_depth_are_read() -> None:
    """A file whose brackets stand deep in one another is looked into, and read."""
    assert list(module_of(index_of(m="x = " + "[" * 50 + "]" * 50)).scope) == ["x"]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_damaged_file_is_read_or_a_problem(data: st.DataObject) -> None:
    """Whatever byte of a file is changed or cut, reading the tree raises nothing."""
    damaged = bytearray(SMALL.encode())
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=3)):
        damaged[at] = data.draw(st.integers(0, 255))
    until = data.draw(st.integers(0, len(damaged)))
    index = index_of(m=bytes(damaged[:until]), n=bytes_of("class Base: pass\nflag = 1\n"))

    _read_all(index)

    assert set(codes_of(index)) <= {
        "engine-file-not-parsed",
        "engine-base-not-found",
        "engine-base-dynamic",
    }
