"""Attributes that a constructor leaves out, though the engine's methods read them."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.attributes import left_out
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
        class Plain:
            def step(self):
                return self.anything
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
