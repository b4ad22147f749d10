"""The classes that values are instances of."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from backend_caps.compatibility.instances import class_around
from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place, Places
from tests.unit.compatibility.pairs import module_of, pair_of

ENGINE = {
    "core": """
        from typing import Optional
        import torch
        class Worker:
            def run(self): ...
        class Runner:
            worker: Worker
            workers: dict[str, Worker]
            held: Optional["Worker"] = None
            def __init__(self, pool):
                self.first = Worker()
                self.first = None
                self.late = None
                self.late: Worker = pool
                self.pairs = [Worker()]
                self.given = pool
            @property
            def last(self) -> Worker: ...
            @property
            def other(self): ...
            def make(self) -> "Worker": ...
            def step(self, worker: Worker, extra, *, named: Worker): ...
        class Scheduler(Runner):
            def kind(self) -> type[Worker]: ...
        CURRENT: Runner = None
        UNSTATED = None
        def runner() -> Runner: ...
        def workers() -> list[Worker]: ...
        def kind() -> type[Worker]: ...
        def unstated(): ...
        """
}
IMPORTS = """
from typing import Optional
import torch
from absent import thing
from engine import core
from engine.core import *
from engine.core import CURRENT, UNSTATED
own: Runner = None
made = Runner()
"""


def _last(pair: Pair) -> Place:
    """Find the last expression that stands alone in the plugin."""
    places: list[Place] = [*Places(module_of(pair), pair.conditions)]
    found = [each.node.value for each in places if isinstance(each.node, ast.Expr)]
    return next(each for each in places if each.node is found[-1])


def _names(text: str) -> list[str]:
    """Return the classes of the last expression of a plugin."""
    pair = pair_of(ENGINE, {"m": IMPORTS + dedent(text)})
    place = _last(pair)
    assert isinstance(place.node, ast.expr)
    return [each.name for each in pair.instances.classes(place.node, place)]


ANNOTATED = [
    pytest.param("Runner", ["Runner"], id="a class"),
    pytest.param("core.Runner", ["Runner"], id="of a module"),
    pytest.param("Runner | None", ["Runner"], id="or None"),
    pytest.param("None | Runner", ["Runner"], id="None or"),
    pytest.param("Optional[Runner]", ["Runner"], id="optional"),
    pytest.param("'Runner | None'", ["Runner"], id="a text"),
    pytest.param("'Runner |'", [], id="a text that cannot be parsed"),
    pytest.param("Runner | Worker", [], id="one of two"),
    pytest.param("list[Runner]", [], id="a list"),
    pytest.param("int", [], id="a class of no engine"),
    pytest.param("3", [], id="no class"),
]


@pytest.mark.parametrize(("annotation", "expected"), ANNOTATED)
def test_a_parameter_is_what_its_annotation_names(annotation: str, expected: list[str]) -> None:
    """One class is named, with or without None."""
    assert _names(f"def f(x: {annotation}):\n  x") == expected


GIVEN = [
    pytest.param("x = Runner()", ["Runner"], id="of the class"),
    pytest.param("x = runner()", ["Runner"], id="of a function's result"),
    pytest.param("x = await runner()", ["Runner"], id="of an awaited result"),
    pytest.param("x = unstated()", [], id="of a result that nothing states"),
    pytest.param("x = runner", [], id="of a function"),
    pytest.param("x = 1", [], id="of a number"),
    pytest.param("x = x", [], id="of itself"),
    pytest.param("def x(): ...", [], id="of a function in it"),
    pytest.param("x = y = Runner()", ["Runner"], id="of two names"),
    pytest.param("x = kind()()", ["Worker"], id="of a class that a function returns"),
    pytest.param("k = kind()\n  x = k()", ["Worker"], id="of such a class by a name"),
    pytest.param("k = kind\n  x = k()", [], id="of a class, which is no instance"),
    pytest.param("x = thing()", [], id="of a call of another package"),
    pytest.param("x = Runner() if made else Worker()", [], id="of an open choice"),
    pytest.param("x = Scheduler().kind()()", ["Worker"], id="of a class that a method returns"),
    pytest.param("import engine.core as x", [], id="of an import"),
]


@pytest.mark.parametrize(("text", "expected"), GIVEN)
def test_a_variable_is_what_it_is_assigned(text: str, expected: list[str]) -> None:
    """A call of a class states it, and the annotation of a function's result."""
    assert _names(f"async def f():\n  {text}\n  x") == expected


def test_a_parameter_of_a_class_makes_instances() -> None:
    """A call of a `type[...]` makes what it is of; keyword-only parameters count too."""
    assert _names("def f(a, *, k: type[Worker]):\n  k()") == ["Worker"]


def test_a_call_at_the_top_of_a_file_is_of_what_is_called() -> None:
    """No function's parameter may be meant there."""
    assert _names("Runner()") == ["Runner"]


ATTRIBUTES = [
    pytest.param("worker", ["Worker"], id="annotated in the class"),
    pytest.param("held", ["Worker"], id="annotated as optional"),
    pytest.param("first", ["Worker"], id="assigned by the constructor"),
    pytest.param("late", ["Worker"], id="annotated after another assignment"),
    pytest.param("given", [], id="assigned what nothing states"),
    pytest.param("last", ["Worker"], id="a property"),
    pytest.param("other", [], id="a property that states nothing"),
    pytest.param("make()", ["Worker"], id="a method's result"),
    pytest.param("make", [], id="a method, which is no instance"),
    pytest.param("gone", [], id="none"),
    pytest.param("gone()", [], id="no method"),
    pytest.param("workers['a']", ["Worker"], id="an element"),
    pytest.param("pairs[0]", ["Worker"], id="an element of what is assigned"),
    pytest.param("gone[0]", [], id="an element of none"),
    pytest.param("other[0]", [], id="an element of what nothing states"),
]


@pytest.mark.parametrize(("attribute", "expected"), ATTRIBUTES)
def test_an_attribute_is_what_its_class_states(attribute: str, expected: list[str]) -> None:
    """The nearest base that states it counts."""
    assert _names(f"def f(x: Scheduler):\n  x.{attribute}") == expected


ELEMENTS = [
    pytest.param("for x in [Runner()]: x", ["Runner"], id="a list"),
    pytest.param("for x in (Runner(), Worker()): x", ["Runner", "Worker"], id="a tuple"),
    pytest.param("for x in [Runner() for _ in y]: x", ["Runner"], id="a comprehension"),
    pytest.param("for x in sorted({Runner()}, key=y): x", ["Runner"], id="what is sorted"),
    pytest.param("for x in y.values(): x", ["Worker"], id="a mapping's values"),
    pytest.param("for x in y: x", ["Runner"], id="a mapping's keys"),
    pytest.param("for _, x in y.items(): x", ["Worker"], id="a mapping's items"),
    pytest.param("for i, x in enumerate(z): x", ["Worker"], id="an assigned list"),
    pytest.param("z[0]", ["Worker"], id="one of an assigned list"),
    pytest.param("z[0].run", [], id="a method of one"),
    pytest.param("for x in z:\n    def g():\n      x", ["Worker"], id="a loop around a function"),
    pytest.param("for x in y.z(): x", [], id="a call"),
    pytest.param("w = w\n  for x in w: x", [], id="a name that is assigned itself"),
]


@pytest.mark.parametrize(("text", "expected"), ELEMENTS)
def test_an_element_is_what_its_container_has(text: str, expected: list[str]) -> None:
    """Displays, annotations and assignments state it."""
    head = "def f(y: dict[Runner, Worker]):\n  z = [Worker()]\n"

    assert _names(f"{head}  {text}") == expected


def test_an_element_of_an_untyped_parameter_is_unknown() -> None:
    """Nothing states what a function that is no method is called with."""
    assert _names("def f(y):\n  y[0]") == []


CHECKED = [
    pytest.param("isinstance(x, Runner)", ["Runner"], id="a class"),
    pytest.param("isinstance(x, (Runner, core.Worker))", ["Runner", "Worker"], id="of several"),
    pytest.param("y and isinstance(x, Worker) and z", ["Worker"], id="beside other conditions"),
    pytest.param("y or isinstance(x, Worker)", [], id="or another condition"),
    pytest.param("not isinstance(x, Worker)", [], id="of none"),
    pytest.param("isinstance(y, Runner)", [], id="of another value"),
    pytest.param("isinstance(x(), Runner)", [], id="of a call"),
    pytest.param("isinstance(x, int)", [], id="a class of no engine"),
]


@pytest.mark.parametrize(("test", "expected"), CHECKED)
def test_a_condition_states_a_class(test: str, expected: list[str]) -> None:
    """`isinstance` does, where it has to hold."""
    assert _names(f"def f(x, y, z):\n  if {test}:\n    x") == expected


ASSERTED = [
    pytest.param("assert isinstance(x, Runner)\n  x", ["Runner"], id="before"),
    pytest.param("x = y[0]\n  assert x and isinstance(x, Runner)\n  x", ["Runner"], id="with more"),
    pytest.param("assert isinstance(x, Worker)\n  assert isinstance(x, Runner)\n  x", ["Runner"],
                 id="the last of two"),
    pytest.param("assert isinstance(x, dict)\n  x", ["Worker"], id="a class of no engine"),
    pytest.param("assert isinstance(y, Runner)\n  x", ["Worker"], id="of another value"),
    pytest.param("if TYPE_CHECKING:\n    assert isinstance(x, Runner)\n  x", ["Worker"],
                 id="in a block that has ended"),
    pytest.param("if y:\n    assert isinstance(x, Runner)\n    while y:\n      x", ["Runner"],
                 id="in the block around"),
    pytest.param("assert isinstance(x, Runner)\n  if isinstance(x, Worker):\n    x", ["Worker"],
                 id="before a condition"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ASSERTED)
def test_an_assertion_states_a_class(text: str, expected: list[str]) -> None:
    """It is surer than an annotation, which may be of what the name had before."""
    assert _names(f"def f(x: Worker, y):\n  {text}") == expected


def test_a_condition_states_the_class_of_each_value_in_it() -> None:
    """All expressions below it have their own."""
    test = "isinstance(x, Runner) and isinstance(y, Worker)"
    pair = pair_of(ENGINE, {"m": f"{IMPORTS}def f(x, y):\n  if {test}: (x, y)"})
    place = _last(pair)
    assert isinstance(place.node, ast.Tuple)

    found = [pair.instances.classes(each, place) for each in place.node.elts]

    assert [[each.name for each in classes] for classes in found] == [["Runner"], ["Worker"]]


def test_a_condition_states_nothing_of_a_call() -> None:
    """A call may return something else each time."""
    assert _names("def f(x):\n  if isinstance(x, Worker):\n    runner()") == ["Runner"]


NAMES = [
    pytest.param("made", ["Runner"], id="assigned"),
    pytest.param("CURRENT", ["Runner"], id="annotated in the engine"),
    pytest.param("UNSTATED", [], id="not annotated in the engine"),
    pytest.param("thing", [], id="of another package"),
    pytest.param("absent", [], id="unknown"),
]


@pytest.mark.parametrize(("name", "expected"), NAMES)
def test_a_name_of_a_file_is_what_it_is_assigned(name: str, expected: list[str]) -> None:
    """An import is what the other file annotates it with."""
    assert _names(f"def f():\n  {name}") == expected


METHODS = [
    pytest.param("class A(Runner):\n  def step(self, worker, extra): worker", ["Worker"],
                 id="by its base"),
    pytest.param("class A(Runner):\n  def step(self, w, extra, named): named", ["Worker"],
                 id="by its base's keyword"),
    pytest.param("class A(Runner):\n  def step(self, worker, extra): extra", [],
                 id="not by its base"),
    pytest.param("class A:\n  def g(self): self.f(Runner())\n  def f(self, x): x", ["Runner"],
                 id="by a call"),
    pytest.param("class A:\n  def g(self): self.f(x=Runner())\n  def f(self, x): x", ["Runner"],
                 id="by a call with its name"),
    pytest.param("class A:\n  def g(self): self.f(x=Runner())\n  def f(self, *, x): x", ["Runner"],
                 id="by a call, keyword alone"),
    pytest.param("class A:\n  def g(self): self.f()\n  def f(self, *, x=None): x", [],
                 id="not by a call without it"),
    pytest.param("class A:\n  def g(self): self.f(0, Runner())\n"
                 "  @staticmethod\n  def f(x, y): y", ["Runner"], id="by a call, of no instance"),
    pytest.param("class A:\n  def g(self): self.f(*xs, Runner())\n  def f(self, x, y): y", [],
                 id="not after others that are unpacked"),
    pytest.param("class A:\n  def g(self, a): a.f(Runner())\n  def f(self, x): x", [],
                 id="not by a call of another object"),
    pytest.param("class A:\n  def f(self, x):\n    def g(y): y\n    return g", [],
                 id="not in a function of a method"),
    pytest.param("class A:\n  x: Runner\n  def f(self): self.x", ["Runner"], id="of self"),
    pytest.param("class A:\n  def f(self): self", ["A"], id="self"),
    pytest.param("def f(self): self", [], id="self of no class"),
    pytest.param("class A:\n  self", [], id="self of no method"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), METHODS)
def test_a_parameter_of_a_method_is_what_its_base_or_its_calls_state(
    text: str, expected: list[str]
) -> None:
    """Where it has no annotation, its base's counts, then calls of `self` in its class."""
    assert _names(text) == expected


def test_a_long_chain_of_attributes_is_not_followed() -> None:
    """An attribute of an attribute is, up to a depth."""
    node = "class A:\n  def __init__(self):\n    self.a: A = 0\n"

    assert _names(f"{node}  def f(self):\n    self{'.a' * 20}") == ["A"]
    assert _names(f"{node}  def f(self):\n    self{'.a' * 40}") == []


def test_no_class_is_around_a_function_of_a_file() -> None:
    """A class is around its methods alone."""
    pair = pair_of({}, {"m": "def f(): 1"})

    assert class_around(_last(pair)) is None
