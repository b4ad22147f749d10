"""The classes whose instances functions make."""

from __future__ import annotations

from backend_caps.engines.source.classes import Classes, Factories
from backend_caps.engines.source.guards import condition
from backend_caps.engines.source.index import FunctionDef
from tests.unit.engines.source.trees import class_of, function_of, index_of, module_of
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
