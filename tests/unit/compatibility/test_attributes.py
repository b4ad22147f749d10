"""Attributes that a constructor leaves out, though the engine's methods read them."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.attributes import is_assigned, left_out
from backend_caps.compatibility.contact import Verdict
from tests.unit.compatibility.pairs import class_of, pair_of

ENGINE = {
    "core": """
        class Root:
            def __init__(self):
                self.root = 1
            def start(self):
                return self.root
        class Worker(Root):
            kind = "a"
            def __init__(self, size):
                super().__init__()
                self.size = size
                self.kind = "b"
                self.unread = 0
            def step(self):
                self.steps = 1
                return self.size, self.size, self.kind, self.steps, self.start()
            def idle(self):
                return self.unread
        class Free(Root):
            def __init__(self):
                self.free = 1
        class Skipped:
            def __init__(self):
                self.named = self.lacked = 1
            def step(self):
                return self.named, self.lacked
        class Skipping(Skipped):
            def __init__(self): self.named = 1
        class Plain:
            def step(self):
                return self.anything
        class Conditional:
            def __init__(self):
                self.of_batch = self.on_demand = self.often = 1
            def step(self, batch):
                if batch: self.of_batch
                if self.on: self.on_demand
                if self.on: self.often
                self.often
        def run(worker):
            worker.step()
        """
}
LEFT = [
    pytest.param("class A(Worker):\n  def __init__(self): ...", ["A.size", "A.root"], id="all"),
    pytest.param("class A(Worker):\n  def __init__(self): self.size = 1", ["A.root"], id="some"),
    pytest.param("class A(Worker):\n  def __init__(self): super().__init__(1)", [],
                 id="none: it calls its base's"),
    pytest.param("class A(Worker):\n  def __init__(self): Worker.__init__(self, 1)", [],
                 id="none: it calls its base's by name"),
    pytest.param("class A(Worker):\n  def __init__(self): Root.__init__(self)", ["A.size"],
                 id="those of the base that it skips"),
    pytest.param("class A(Worker):\n  size = root = 1\n  def __init__(self): ...", [],
                 id="none: its body has them"),
    pytest.param("class A(Worker):\n  def __init__(self): ...\n  def size(self): ...",
                 ["A.root"], id="one that is no method of its own"),
    pytest.param("class A(Worker):\n  def __init__(self): ...\n  def step(self): ...", [],
                 id="none: its own method runs"),
    pytest.param("class A(Worker): ...", [], id="none: it has no constructor"),
    pytest.param("class A:\n  def __init__(self): ...", [], id="none: no engine's class"),
    pytest.param("class A(Free):\n  def __init__(self): super().__init__()", [],
                 id="none: the engine's own skips the same"),
    pytest.param("class Other:\n  def __init__(self): ...\n"
                 "class A(Worker):\n  def __init__(self): Other.__init__(self)", [],
                 id="none: another class makes its instances"),
    pytest.param("class A(Skipped):\n  def __init__(self): ...", ["A.named"],
                 id="what each of the engine's own has"),
    pytest.param("class A(Plain):\n  def __init__(self): ...", [],
                 id="none: the base has no constructor"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), LEFT)
def test_an_attribute_that_no_constructor_assigns_is_left_out(
    text: str, expected: list[str]
) -> None:
    """It is where a method of the engine that runs for the class reads it."""
    pair = pair_of(ENGINE, {"m": f"from engine.core import *\n{text}"})

    found = [each.what for each in left_out(pair, class_of(pair, "A"))]

    assert found == expected


def test_an_attribute_that_is_left_out_breaks_at_the_constructor() -> None:
    """The finding names the method that reads it, and what to write."""
    text = "from engine.core import Worker\nclass A(Worker):\n  root = 1\n  def __init__(self): ..."
    pair = pair_of(ENGINE, {"m": text})

    [found] = left_out(pair, class_of(pair, "A"))

    assert (found.verdict, found.at, found.engine_at) == (
        Verdict.BREAKS,
        "plugin/m.py:4",
        "engine/core.py:16",
    )
    assert found.why == "Worker.step reads it, and __init__ does not assign it"
    assert found.remedy == "assign self.size, or call super().__init__()"


def test_a_condition_on_the_instance_may_never_hold() -> None:
    """The finding names the condition; the read that is sure counts before one that is not."""
    text = "from engine.core import Conditional\nclass A(Conditional):\n  def __init__(self): ..."
    pair = pair_of(ENGINE, {"m": text})

    found = {each.what: (each.verdict, each.why) for each in left_out(pair, class_of(pair, "A"))}

    reads, lost = "Conditional.step reads it", "and __init__ does not assign it"
    assert found == {
        "A.of_batch": (Verdict.BREAKS, f"{reads} where batch, {lost}"),
        "A.on_demand": (Verdict.CHANGED, f"{reads} where self.on, {lost}"),
        "A.often": (Verdict.BREAKS, f"{reads}, {lost}"),
    }


ASSIGNED = [
    pytest.param("def f(x): x.late = 1", True, id="of an unknown object"),
    pytest.param("def f(x: Worker): x.late = 1", True, id="of an instance"),
    pytest.param("def f(x: Special): x.late: int = 1", True, id="of a subclass's"),
    pytest.param("def f(x: Root): x.late = 1", True, id="of its base's"),
    pytest.param("Worker.late = 1", True, id="of the class"),
    pytest.param("def f(x): setattr(x, 'late', 1)", True, id="by its text"),
    pytest.param("def f(x: Plain): x.late = 1", False, id="of another class's"),
    pytest.param("import torch\ntorch.Tensor.late = 1", False, id="of another package's"),
    pytest.param("def f(x):\n  x.late == 1; x.late", False, id="it is read"),
    pytest.param("def f(self): (self).late = 1", False, id="of the object itself"),
    pytest.param("f('x.late = 1')", False, id="in a text"),
]


@pytest.mark.parametrize(("text", "expected"), ASSIGNED)
@pytest.mark.parametrize("is_engines", [True, False])
def test_an_attribute_is_assigned_of_what_may_be_an_instance(
    text: str, *, expected: bool, is_engines: bool
) -> None:
    """An object whose class nothing states may be one; either may assign it."""
    imports = "from engine.core import *\nclass Special(Worker): ...\n"
    engine = {**ENGINE, "m": f"{imports}{text}"} if is_engines else ENGINE
    pair = pair_of(engine, {"m": "" if is_engines else f"{imports}{text}"})

    assert is_assigned(pair, class_of(pair, "Worker", "engine.core"), "late") is expected


def test_an_attribute_of_an_unknown_owner_may_be_assigned() -> None:
    """Any assignment may be of it."""
    pair = pair_of({"m": "def f(x): x.late = 1"})

    assert is_assigned(pair, None, "late")
    assert not is_assigned(pair, None, "later")
