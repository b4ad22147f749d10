"""The methods of an engine's classes that run for a plugin's class."""

from __future__ import annotations

import pytest

from tests.unit.compatibility.pairs import class_of, pair_of

ENGINE = {
    "core": """
        class Root:
            def __init__(self): ...
            def load(self): ...
            def fill(self): ...
        class Side:
            def load(self): ...
        class Worker(Root, Side):
            def step(self):
                self.load()
            def named(self): ...
            def fill(self): ...
            def dead(self):
                self.never()
            def never(self): ...
            @property
            def size(self):
                return self.counted()
            def counted(self): ...
        def run(worker):
            worker.step()
            worker.collective("named")
        """
}
ALWAYS = {"Root.__init__", "Worker.step", "Worker.named", "Worker.size", "Worker.counted"}
RUNS = [
    pytest.param("kind = 1", {"Root.load"}, id="what the engine calls, and what that calls"),
    pytest.param("def load(self): ...", {"A.load"}, id="an own method in the place of one"),
    pytest.param("def load(self): super().load()", {"A.load", "Root.load"}, id="by super"),
    pytest.param("def load(self): super(Root, self).load()", {"A.load", "Side.load"},
                 id="by super of a base"),
    pytest.param("def load(self): super(Gone, self).load()", {"A.load", "Root.load"},
                 id="by super of no base"),
    pytest.param("def load(self): super().gone()", {"A.load"}, id="by super, which lacks it"),
    pytest.param("def load(self): Side.load(self)", {"A.load", "Side.load"}, id="by a class"),
    pytest.param("def load(self): core.Worker.fill(self)", {"A.load", "Worker.fill"},
                 id="by a class of a module"),
    pytest.param("def load(self): Other.fill(self)", {"A.load"}, id="by another class"),
    pytest.param("def own(self): self.dead()",
                 {"A.own", "Root.load", "Worker.dead", "Worker.never"}, id="by the plugin"),
    pytest.param("@classmethod\n  def own(cls): cls.own(); cls.fill(1)",
                 {"A.own", "Root.load", "Worker.fill"}, id="by a class method"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), RUNS)
def test_a_method_runs_where_something_that_runs_calls_it(body: str, expected: set[str]) -> None:
    """The engine starts with what it calls of others, names in texts, or reads as a property."""
    text = f"from engine import core\nfrom engine.core import *\nclass A(Worker):\n  {body}"
    pair = pair_of(ENGINE, {"m": text})

    found = pair.live_methods.of(class_of(pair, "A"))

    assert {f"{owner.name}.{name}" for owner, name in found} == ALWAYS | expected
