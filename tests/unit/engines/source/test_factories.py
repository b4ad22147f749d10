"""The classes whose instances functions make."""

from __future__ import annotations

import pytest

from backend_caps.engines.source.classes import Classes, Factories
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import methods_of
from tests.unit.engines.source.trees import class_of, function_of, index_of, module_of

OTHER = "class B: pass\ndef make(): return B()\nmade = B()\nC = B\n"


def _made(text: str) -> list[tuple[str, str]]:
    """List what a module's function `f` makes, each with its condition; `lost` has no class."""
    index = index_of(m=text, n=OTHER)
    factories = Factories(index, Classes(index))
    found = factories.made(FunctionDef(module_of(index), function_of(index, "f")))
    return [
        (made.path.removeprefix("engine.") if made else "lost", condition(guards))
        for guards, made in found
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
        pytest.param("class A: pass\ndef f(A): return A()", [("lost", "")], id="an argument"),
        pytest.param("import n\ndef f(): return n.B()", [("lost", "")], id="outside"),
        pytest.param("def f(): return x()()", [("lost", "")], id="what only running code knows"),
        pytest.param("from . import n\ndef f(): return n()", [("lost", "")], id="a module"),
        pytest.param("def f(): return 1", [("lost", "")], id="a constant"),
        pytest.param("b = 1\ndef f(): return b", [("lost", "")], id="a variable that is none"),
        pytest.param("def f(): return self.g()", [("lost", "")], id="a method of nothing"),
        pytest.param("def f(): return f()", [("lost", "")], id="itself"),
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
    factories = Factories(index, Classes(index))

    found = factories.made(FunctionDef(module_of(index), get), class_of(index, "A"))

    assert [(made and made.name, condition(guards)) for guards, made in found] == [
        ("A", "x"),
        (None, "not x"),
    ]


def test_tables_of_functions_are_followed() -> None:
    """A call of a table's item is one of the function that is known to be there."""
    index = index_of(m="def f(): return T['b']() if x else T['c']()", n=OTHER)
    tables = {"T": {"b": FunctionDef(module_of(index, "n"), function_of(index, "make", "n"))}}
    factories = Factories(index, Classes(index), tables=tables)

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
