"""Interpreting functions: as Python does where everything is known, and soundly where it is not."""

from __future__ import annotations

import ast
import gc
from weakref import ref

import pytest

from backend_caps.engines.source import interpreter
from backend_caps.engines.source.calls import NotFollowedError
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import forget_types, library
from backend_caps.engines.source.uncertainty import has_unknown
from backend_caps.engines.source.values import (
    ABSENT,
    External,
    Frame,
    Hook,
    Instance,
    Native,
    Raised,
    Unknown,
)
from tests.unit.engines.source.trees import index_of
from tests.unit.engines.tables import table

UNKNOWN = Unknown("u")


def _run(code: str, *args: Native, **natives: Native) -> tuple[Interpreter, Native]:
    run = Interpreter(index_of(m=code), {**library({}), **natives})
    return run, run.call(run.found("engine.m.f"), *args)


def _natively(code: str, *args: object) -> object:
    names: dict[str, Native] = {"__name__": __name__}
    exec(compile(code, "m", "exec", dont_inherit=True), names)  # noqa: S102 - the test's own
    return names["f"](*args)


def _listed(value: object) -> object:
    """Write tuples as lists, deeply."""
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    return value


@table("programs", "known")
def test_known_program_gives_what_python_gives(code: str) -> None:
    """Where everything is known, the result is Python's, and nothing may be raised."""
    run, result = _run(code)

    assert _listed(result) == _listed(_natively(code))
    assert not run.notes


@table("programs", "unknown")
def test_unknown_value_leaves_only_what_holds_for_every_value(
    code: str, values: list[object], result: str | None, notes: int | None
) -> None:
    """What is known of a result is Python's for each value that may come; errors are noted."""
    run, found = _run(code, UNKNOWN)

    expected = None if result is None else eval(result)  # noqa: S307 - this test's own table
    assert (None if has_unknown(found) else _listed(found)) == expected
    for value in values if expected is not None else ():
        assert _listed(_natively(code, value)) == expected
    assert len(run.notes) == (notes or 0)


@table("programs", "raising")
def test_error_of_the_program_has_its_line(code: str, message: str, error: str, line: int) -> None:
    """An error is raised with its message, its class and the line of the program."""
    with pytest.raises(Raised) as raised:
        _run(code)

    found = raised.value
    assert (found.message, found.error, found.at) == (message, error, f"engine/m.py:{line}")


def test_name_whose_import_failed_is_not_defined() -> None:
    """An error of it is expected, and leads to no other one; what a handler binds is there."""
    code = """
        try:
            from own import first, second
        except ImportError:
            second = 2

        def _first():
            if first():
                return 1
            raise ValueError("there is none")

        def f():
            try:
                return _first(), second
            except NameError as error:
                return str(error), second
    """
    run = Interpreter(index_of(m=code), {**library({}), "import own": False})

    assert run.call(run.found("engine.m.f")) == ("name 'first' is not defined", 2)
    assert not run.notes


def test_module_has_the_names_that_it_binds() -> None:
    """One that imports all of what is outside of the tree may have any."""
    index = index_of(
        m="""
            from engine import a, b, c

            def f():
                return [hasattr(each, "x") for each in (a, b, c)]
        """,
        a="def x():\n    pass\n",
        b="def y():\n    pass\n",
        c="from outside import *\n",
    )
    run = Interpreter(index, library({}))

    first, second, third = run.call(run.found("engine.m.f"))

    assert (first, second) == (True, False)
    assert isinstance(third, Unknown)


def test_imports_run_when_a_name_is_used() -> None:
    """Modules of the tree run on the first use of their names; a circle leaves a name unknown."""
    index = index_of(
        __init__="",
        m="""
            import engine.b
            import engine.c as c
            from engine.b import *
            from engine.c import *
            from engine.b import two as pair
            from engine import lazy
            from . import d

            def f():
                from engine.c import three
                return one, pair, three, c.four, engine.b.one, lazy.anything, d.five, d.known
        """,
        b="__all__ = ['one']\none, two = 1, 2\n",
        c="three, four, _five = 3, 4, 5\n",
        lazy="def __getattr__(name):\n    return name\n",
        d="from engine.d import six\nfive = six\nknown = 7\n",
    )
    run = Interpreter(index, library({}))

    *known, circle, last = run.call(run.found("engine.m.f"))

    assert known == [1, 2, 3, 4, 1, "anything"]
    assert isinstance(circle, Unknown)
    assert last == 7


def test_package_has_what_a_part_of_it_defines_that_was_imported_first() -> None:
    """Python imports the package before its part, so the name is there when it is used."""
    index = index_of(
        __init__="from engine.layers import Attention\n",
        layers="from engine.kinds import KIND\nkind = KIND\nclass Attention:\n    pass\n",
        kinds="import engine\nKIND = 'full'\n",
        own="from engine import Attention\n\ndef of(own):\n    return isinstance(own, Attention)\n",
    )
    run = Interpreter(index, library({}))

    made = run.call(run.found("engine.layers.Attention"))

    assert run.call(run.found("engine.own.of"), made) is True


def test_package_that_is_missing_raises_an_import_error() -> None:
    """A package that is known to be missing is handled as Python does."""
    code = """
        def f():
            try:
                import sgl_kernel.extra
                return "there"
            except ImportError:
                return "missing"
    """

    assert _run(code, **{"import sgl_kernel": False})[1] == "missing"
    assert _run(code)[1] == "there"


def test_external_names_mean_what_the_table_says() -> None:
    """A known name has its value, one that is absent is missing, and all others are unknown."""
    code = """
        import torch
        from torch import cuda as gpu

        class Child(torch.nn.Module):
            def size(self):
                return super().width

        def f():
            return [torch.cuda.count(), gpu.count(), hasattr(torch, "npu"), hasattr(torch, "cuda"),
                    torch.thing is None, torch.thing == torch.thing, torch.thing == 3,
                    torch.thing is torch.thing,
                    getattr(torch, "npu", "none"), torch.__dict__,
                    isinstance(Child(), torch.nn.Module), isinstance(3, torch.Tensor)], [
                    torch.thing(), torch.thing[0], torch.thing + 1, Child().weight,
                    Child.weight, hasattr(torch, "thing"), torch.thing < 3,
                    isinstance(torch.thing, int), callable(torch.thing), type(torch.thing),
                    type("Own", (torch.thing,), {}),
                    torch.thing is torch.other, Child().size(),
                    "a" in torch.thing, str(torch.thing()), torch.thing == torch.other]
    """
    natives = {"torch.cuda.count": Hook(lambda *_: 8), "torch.npu": ABSENT}

    _, (known, unknown) = _run(code, **natives)

    assert known == [8, 8, False, True, False, True, False, True, "none", {}, True, False]
    assert all(isinstance(each, Unknown | External) for each in unknown)


def test_class_of_a_library_has_after_a_run_what_it_had_before() -> None:
    """All programs share it."""
    code = """
        import argparse

        def f():
            before = [hasattr(argparse.ArgumentParser, "own"), argparse.ArgumentParser.add_argument]
            argparse.ArgumentParser.own = argparse.ArgumentParser.add_argument = 1
            return before, argparse.ArgumentParser.own
    """
    run, (before, own) = _run(code)
    run.restore()

    other, again = _run(code)
    other.restore()

    assert own == 1
    assert again[0] == before
    assert before[0] is False


def test_name_that_a_module_lacks_is_not_imported() -> None:
    """The module's other names are; the error is the one that programs expect."""
    code = """
        try:
            from torch import npu as found
        except ImportError:
            from torch import cuda as found

        def f():
            return found
    """

    _, found = _run(code, **{"torch.npu": ABSENT, "torch.cuda": 8})

    assert found == 8


def test_function_and_class_of_the_tree_can_be_replaced() -> None:
    """A hook runs in place of a function or a class of its dotted name."""
    code = """
        class Thing:
            pass

        def probe(x):
            raise ValueError

        def f():
            return probe(2), Thing()
    """
    replaced = {
        "engine.m.probe": Hook(lambda _run, args, _named: args[0] + 1),
        "engine.m.Thing": Hook(lambda *_: "thing"),
    }

    assert _run(code, **replaced)[1] == (3, "thing")


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("def f():\n    while True:\n        pass", id="a loop"),
        pytest.param("def f():\n    return f()", id="a recursion"),
    ],
)
def test_program_without_end_is_not_followed(code: str) -> None:
    """A program that goes on for too long, or too deep, is left."""
    with pytest.raises(NotFollowedError):
        _run(code)


def test_statement_that_is_not_known_leaves_its_names_unknown() -> None:
    """What a statement binds that the interpreter does not have is unknown; the rest runs."""
    code = """
        def f():
            match 3:
                case 3:
                    x = 1
            return x, 2
    """

    unknown, known = _run(code)[1]

    assert isinstance(unknown, Unknown)
    assert known == 2


def test_module_that_fails_leaves_its_other_names() -> None:
    """An error at the top of a module makes the names of that statement unknown, and no others."""
    code = """
        broken = int("x")
        fine = 4

        @int("x")
        def also():
            return 1

        def f():
            return broken, fine, also
    """

    broken, fine, also = _run(code)[1]

    assert isinstance(broken, Unknown)
    assert isinstance(also, Unknown)
    assert fine == 4


def test_struct_is_a_record() -> None:
    """A class below msgspec's Struct, and one that defstruct makes, has its fields."""
    code = """
        import msgspec
        from typing import Any, get_type_hints

        class Point(msgspec.Struct, frozen=True):
            x: int
            y: int = msgspec.field(default=2)
            z: list = msgspec.field(default_factory=list)
            w: list = []

            def total(self):
                return self.x + self.y

        def double(self):
            return self.x * 2

        fields = [("x", int), ("y", int, 5), "z"]
        Made = msgspec.defstruct("Made", fields, namespace={"double": double})

        def f():
            point = Point(1)
            made = Made(3, z=1)
            point_fields = [each.name for each in msgspec.structs.fields(Point)]
            kept = msgspec.structs.fields(Point)
            return [point.total(), point.z, Point.__struct_fields__, made.double(), made.y, made.z,
                    point_fields, msgspec.structs.asdict(point), get_type_hints(Point)["x"] is int,
                    get_type_hints(Made)["x"] is int, msgspec.structs.replace(point, x=4).x,
                    kept[1].default, kept[0].type is int, kept[3].default_factory()]
    """

    assert _run(code)[1] == [
        *(3, [], ("x", "y", "z", "w"), 6, 5, 1, ["x", "y", "z", "w"]),
        {"x": 1, "y": 2, "z": [], "w": []},
        *(True, True, 4, 2, True, []),
    ]


def test_object_of_an_interpreted_class_is_shown_by_its_class() -> None:
    """Messages show an object by its class."""
    _, made = _run("class Thing:\n    pass\n\ndef f():\n    return Thing()")

    assert isinstance(made, Instance)
    assert repr(made) == "<Thing>"


def test_names_of_a_star_that_is_outside_are_not_known() -> None:
    """What `from package import *` binds is not known where the package is not read."""
    _, found = _run("from torch import *\n\ndef f():\n    return anything")

    assert isinstance(found, Unknown)
    assert str(found) == "torch.anything"


def test_expression_of_a_newer_python_is_not_known() -> None:
    """An expression that the interpreter does not have is unknown."""
    run, _ = _run("def f():\n    return 1")
    part = ast.parse("f'{x}'", mode="eval").body
    assert isinstance(part, ast.JoinedStr)

    found = run.value(part.values[0], Frame(run.modules["engine.m"], {}))

    assert isinstance(found, Unknown)


def test_method_finds_its_base_from_a_comprehension() -> None:
    """`super()` in a comprehension of a method is the method's, as in newer Pythons."""
    code = """
        class Base:
            x = 1

        class Own(Base):
            def xs(self):
                return [super().x for _ in range(2)]

        def f():
            return Own().xs()
    """

    assert _run(code)[1] == [1, 1]


def test_program_of_too_many_statements_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of statements is limited."""
    monkeypatch.setattr(interpreter, "_MOST_STEPS", 20)

    with pytest.raises(NotFollowedError, match="more than 20 statements"):
        _run("def f():\n    for x in range(100):\n        y = x")


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        ("parser.add_argument('--x'), parser.add_argument('--x')", "ArgumentError: "),
        ("parser.format_usage(1)", "TypeError: "),
    ],
)
def test_parser_that_cannot_be_followed_says_so(calls: str, error: str) -> None:
    """What our own parser cannot do is not the program's error."""
    with pytest.raises(NotFollowedError, match=error) as raised:
        _run(f"""
            import argparse
            def f():
                parser = argparse.ArgumentParser()
                return [{calls}]
        """)

    assert raised.value.at == "engine/m.py:5"


def test_interpreter_is_freed_with_the_types_that_it_made() -> None:
    """`typing` keeps what is made of a program's classes, and with them the whole program."""
    run, _ = _run("import typing\nclass C:\n    x = 1\ndef f():\n    return typing.Optional[C]\n")
    held = ref(run)
    del run, _
    gc.collect()
    assert held() is not None

    forget_types()

    gc.collect()
    assert held() is None
