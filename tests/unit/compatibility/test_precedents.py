"""What the engine's own classes do."""

from __future__ import annotations

import ast

import pytest

from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.signatures import Arguments
from tests.unit.compatibility.pairs import class_of, expression, pair_of

ENGINE = {
    "core": """
        class Worker:
            def __init__(self, size): ...
            def step(self, batch):
                self.load(batch, 1)
            def other(self):
                self.load(batch, 1, 2)
            def load(self, batch, at): ...
            def quiet(self):
                self.made(1)
            @staticmethod
            def made(x): ...
        class Fast(Worker):
            def step(self, batch, *, fast=False):
                super().step(batch)
            def load(self, batch, at): ...
            @staticmethod
            def made(x): ...
        class Loader(Worker):
            def load(self, batch, at): ...
            @anything
            def step(self): ...
        class Fastest(Fast):
            def __init__(self): ...
            def other(self): ...
            def load(self, batch): ...
            def step(self, batch, *, fast): ...
        def run(worker):
            worker.step(1)
            worker.other()
            worker.quiet()
        """
}
PLUGIN = {"m": "from engine.core import Worker\nclass Own(Worker):\n  def step(self): ..."}


@pytest.fixture(scope="module")
def pair() -> Pair:
    """Put a plugin beside an engine with a family of classes."""
    return pair_of(ENGINE, PLUGIN)


def _call(text: str) -> ast.Call:
    node = expression(text)
    assert isinstance(node, ast.Call), text
    return node


def _arguments(text: str) -> Arguments:
    return Arguments.of(_call(text))


def test_a_family_is_of_the_engine_alone(pair: Pair) -> None:
    """The plugin's classes are no precedent."""
    found = pair.precedents.family(class_of(pair, "Worker", "engine.core"))

    assert [each.name for each in found] == ["Worker", "Fast", "Loader", "Fastest"]


CALLS = [
    pytest.param("f(1, fast=True)", False, True, id="some"),
    pytest.param("f()", False, False, id="none"),
    pytest.param("f(1)", False, True, id="all but one"),
]


@pytest.mark.parametrize(("call", "all_take", "some_take"), CALLS)
def test_a_call_is_taken_by_methods_of_a_family(
    pair: Pair, call: str, all_take: bool, some_take: bool
) -> None:
    """One with a decorator that nothing tells of is not asked."""
    root = class_of(pair, "Worker", "engine.core")
    arguments = _arguments(call)

    assert pair.precedents.take(root, "step", arguments) is all_take
    assert pair.precedents.some_takes(root, "step", arguments) is some_take


def test_a_call_that_all_methods_take_is_of_the_family(pair: Pair) -> None:
    """Static methods get no instance."""
    root = class_of(pair, "Worker", "engine.core")

    assert pair.precedents.take(root, "made", _arguments("f(1)"))
    assert not pair.precedents.take(root, "made", _arguments("f(1, 2)"))


OF_BASE = [
    pytest.param("step", "self.load(batch, 1)", True, id="no class that it runs for refuses"),
    pytest.param("step", "self.load(batch)", False, id="a class that calls super() refuses"),
    pytest.param("other", "self.load(batch, 1, 2)", False, id="a class that inherits refuses"),
    pytest.param("quiet", "self.made(1)", True, id="a static method takes"),
    pytest.param("quiet", "self.made(1, 2)", False, id="a static method refuses"),
    pytest.param("quiet", "self.gone()", True, id="no class has the method"),
]


@pytest.mark.parametrize(("caller", "call", "expected"), OF_BASE)
def test_a_call_of_self_is_taken_by_the_classes_that_it_runs_for(
    pair: Pair, caller: str, call: str, expected: bool
) -> None:
    """A class with its own caller, which does not call the base's, is not asked."""
    base = class_of(pair, "Worker", "engine.core")

    assert pair.precedents.take_of_base(base, caller, _call(call)) is expected


CONSTRUCTIONS = [
    pytest.param("Worker", "f(1)", False, id="not by all"),
    pytest.param("Loader", "f(1)", True, id="by the only one"),
    pytest.param("Loader", "f(1, 2)", False, id="by none"),
    pytest.param("Fastest", "f()", True, id="by its own constructor"),
]


@pytest.mark.parametrize(("root", "call", "expected"), CONSTRUCTIONS)
def test_a_family_is_made_by_a_call(pair: Pair, root: str, call: str, expected: bool) -> None:
    """Each of its classes is to take the arguments."""
    definition = class_of(pair, root, "engine.core")

    assert pair.precedents.construct(definition, _arguments(call)) is expected


def test_last_classes_without_a_method_are_counted(pair: Pair) -> None:
    """Those that inherit it from the root do without their own; those between are not counted."""
    root = class_of(pair, "Worker", "engine.core")

    names = ("load", "quiet", "step")
    counts = {name: len([*pair.precedents.without(root, name)]) for name in names}

    assert counts == {"load": 0, "quiet": 2, "step": 0}
