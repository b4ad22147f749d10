"""What functions return, and whose instances they make."""

from __future__ import annotations

import ast

import pytest

from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import methods_of
from backend_caps.engines.source.returns import Makers, returns
from tests.unit.engines.source.trees import class_of, function_of, index_of, module_of

OTHER = "class B: pass\ndef make(): return B()\nmade = B()\nC = B\n"


def _made(text: str) -> list[tuple[str, str]]:
    """List what the function `f` of a module makes, each with its condition."""
    index = index_of(m=text, n=OTHER)
    makers = Makers(index, Classes(index))
    found = makers.made(FunctionDef(module_of(index), function_of(index, "f")))
    return [(made.path.removeprefix("engine."), condition(guards)) for guards, made in found]


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


@pytest.mark.parametrize(
    ("text", "made"),
    [
        pytest.param("class A: pass\ndef f(): return A()", [("m.A", "")], id="a class"),
        pytest.param("from .n import B\ndef f(): return B()", [("n.B", "")], id="an import"),
        pytest.param("def f():\n    from .n import B\n    return B()", [("n.B", "")], id="within"),
        pytest.param("from . import n\ndef f(): return n.C()", [("n.B", "")], id="an alias"),
        pytest.param("from .n import make\ndef f(): return make()", [("n.B", "")], id="a maker"),
        pytest.param("from .n import made\ndef f(): return made", [("n.B", "")], id="a value"),
        pytest.param("from .n import B\ndef f(): return 1, B()", [("n.B", "")], id="the last item"),
        pytest.param(
            "def f():\n    class A: pass\n    b = A()\n    return b",
            [("m.f.A", "")],
            id="a variable",
        ),
        pytest.param(
            "from .n import B\ndef f():\n    if x:\n        b = B()\n    else:\n        b = g()\n"
            "    return b\ndef g():\n    if y: return B()",
            [("n.B", "x"), ("n.B", "not x and y")],
            id="by conditions",
        ),
        pytest.param(
            "from .n import B\ndef f():\n    if x: return B()\n    return B() if x else B()",
            [("n.B", "x"), ("n.B", "not x and x"), ("n.B", "not x")],
            id="each condition once",
        ),
        pytest.param("class A: pass\ndef f(A): return A()", [], id="an argument"),
        pytest.param("import n\ndef f(): return n.B()", [], id="outside"),
        pytest.param("def f(): return x()()", [], id="what only running code knows"),
        pytest.param("from . import n\ndef f(): return n()", [], id="a module"),
        pytest.param("def f(): return 1", [], id="a constant"),
        pytest.param("b = 1\ndef f(): return b", [], id="a variable that is none"),
        pytest.param("def f(): return self.g()", [], id="a method of nothing"),
        pytest.param("def f(): return f()", [], id="itself"),
    ],
)
def test_made_classes_are_followed(text: str, made: list[tuple[str, str]]) -> None:
    """Calls, variables and aliases are followed to the classes whose instances come back."""
    assert _made(text) == made


def test_variable_of_another_file_is_read_there() -> None:
    """A name in a value of another module's is that module's, not the function's own."""
    assert _made("from .n import made\ndef f():\n    B = 1\n    return made") == [("n.B", "")]


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
    get = methods_of(class_of(index, "Base"))["get"]
    makers = Makers(index, Classes(index))

    found = makers.made(FunctionDef(module_of(index), get), class_of(index, "A"))

    assert [(made.name, condition(guards)) for guards, made in found] == [("A", "x")]


def test_tables_of_functions_are_followed() -> None:
    """A call of a table's item is one of the function that is known to be there."""
    index = index_of(m="def f(): return T['b']() if x else T['c']()", n=OTHER)
    tables = {"T": {"b": FunctionDef(module_of(index, "n"), function_of(index, "make", "n"))}}
    makers = Makers(index, Classes(index), tables=tables)

    found = makers.made(FunctionDef(module_of(index), function_of(index, "f")))

    assert [(made.name, condition(guards)) for guards, made in found] == [("B", "x")]


def test_many_ways_to_a_class_end() -> None:
    """Functions that double the ways at each step do not hold up the reading."""
    text = "".join(f"def f{n}(): return f{n + 1}() if c{n} else f{n + 1}()\n" for n in range(11))

    made = _made(f"class A: pass\ndef f(): return f0()\n{text}def f11(): return A()")

    assert 0 < len(made) <= 2**11
