"""What a plugin supplies in place of an engine's own, beside how the engine calls it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.overrides import overrides
from tests.unit.compatibility.pairs import class_of, pair_of

BASE = """
class Base:
    def plan(self, batch): ...
    def stop(self): ...
    async def fetch(self, path): ...
    @property
    def size(self): ...
    @classmethod
    def make(cls, rank): ...
    def __call__(self, batch): ...
    value = 1
class Own(Base):
    def plan(self, batch, graph=None): ...
"""
RUN = "from engine.base import Base\ndef run(x: Base):\n  x.plan(1)"


def _found(own: str, run: str = RUN, base: str = BASE) -> list[Contact]:
    """Compare a class A of the plugin, which derives from the engine's Base."""
    plugin = f"from engine.base import Base\nclass A(Base):\n  {own}"
    pair = pair_of({"base": base, "run": dedent(run)}, {"m": plugin})
    return [*overrides(pair, class_of(pair, "A"))]


def _told(own: str, run: str = RUN, base: str = BASE) -> list[tuple[Verdict, str]]:
    return [(each.verdict, each.why) for each in _found(own, run, base)]


HOLDS = (Verdict.HOLDS, "")
KINDS = [
    pytest.param("def plan(self, batch): ...", HOLDS, id="the same"),
    pytest.param("@property\n  def size(self): ...", HOLDS, id="a property, too"),
    pytest.param("async def fetch(self, path): ...", HOLDS, id="a coroutine, too"),
    pytest.param("def size(self): ...", (Verdict.BREAKS, "Base.size is read as an attribute"),
                 id="a method for a property"),
    pytest.param("@property\n  def plan(self): ...",
                 (Verdict.BREAKS, "Base.plan is called, and is no property"),
                 id="a property for a method"),
    pytest.param("def fetch(self, path): ...", (Verdict.BREAKS, "Base.fetch is awaited"),
                 id="a method for a coroutine"),
    pytest.param("async def plan(self, batch): ...",
                 (Verdict.BREAKS, "Base.plan is not awaited"), id="a coroutine for a method"),
    pytest.param("@unknown\n  def plan(self): ...",
                 (Verdict.NOT_CHECKED, "its decorators may change its parameters: unknown"),
                 id="a decorated one"),
]  # fmt: skip


def test_a_method_that_only_raises_takes_any_call() -> None:
    """The plugin does without it, whatever it is called with."""
    assert _told("def plan(self):\n    'No.'\n    raise NotImplementedError") == [HOLDS]


@pytest.mark.parametrize(("own", "expected"), KINDS)
def test_an_override_is_of_the_kind_of_the_engines(own: str, expected: tuple[Verdict, str]) -> None:
    """It is read, called or awaited as the engine's own is."""
    assert _told(own) == [expected]


@pytest.mark.parametrize(
    "own",
    ["def extra(self): ...", "def __call__(self): ...", "def value(self): ..."],
    ids=["its own", "a special one", "in the place of a value"],
)
def test_a_method_that_the_engine_has_not_is_no_override(own: str) -> None:
    """Special methods are compared elsewhere."""
    assert _told(own) == []


def test_a_class_without_a_base_of_the_engine_has_no_overrides() -> None:
    """Its methods are its own."""
    pair = pair_of({"base": BASE}, {"m": "class A:\n  def plan(self): ..."})

    assert [*overrides(pair, class_of(pair, "A"))] == []


ELSEWHERE = [
    pytest.param("from engine.base import Base\ndef run(x: Base): x.plan(1, 2, 3)",
                 id="with what the base does not take"),
    pytest.param("def run(x):\n  if supports_kw(x.plan, 'graph'): x.plan(1)",
                 id="after a look at the parameters"),
    pytest.param("import torch\ndef run(): torch.plan(1)", id="of another package"),
    pytest.param("from engine.base import Own\ndef run(x): Own.plan(x, 1)",
                 id="of a class by its name"),
    pytest.param("from engine import base\ndef run(x): base.Own.plan(x)",
                 id="of a class of a module"),
    pytest.param("from engine.base import Base\nclass B(Base):\n  def plan(self): super().plan(1)",
                 id="of a base"),
    pytest.param("class B:\n  def stop(self): self.plan(1)", id="of another class's own"),
    pytest.param("from engine.base import Base\nclass B(Base):\n  x = self.plan(1)",
                 id="in the body of a class"),
    pytest.param("self.plan(1)", id="of a global"),
]  # fmt: skip


@pytest.mark.parametrize("run", ELSEWHERE)
def test_a_call_that_is_of_something_else_does_not_count(run: str) -> None:
    """What another object takes, an override need not."""
    assert _told("def plan(self): ...", run) == [HOLDS]


@pytest.mark.parametrize("own", ["batch", "batch, more=1", "*args", "batch=None"])
def test_an_override_that_takes_the_engines_call_holds(own: str) -> None:
    """It may take more."""
    assert _told(f"def plan(self, {own}): ...") == [HOLDS]


def test_an_override_that_does_not_take_the_engines_call_breaks() -> None:
    """What is said has the call."""
    [found] = _found("def plan(self, batch, graph): ...")

    assert found.verdict is Verdict.BREAKS
    assert found.why == ("(batch, graph) needs 'graph', and does not get it; run calls it with (1)")
    assert (found.at, found.engine_at) == ("plugin/m.py:3", "engine/run.py:3")


def test_a_result_of_an_override_is_compared() -> None:
    """The engine unpacks what it got of its own."""
    run = "from engine.base import Base\ndef run(x: Base):\n  a, b = x.plan(1)"

    found = _found("def plan(self, batch): return 1, 2, 3", run)

    assert [each.kind for each in found] == [ContactKind.OVERRIDE, ContactKind.RESULT]


OF_SELF = [
    pytest.param("def run(self): self.plan(1)", "x.run()", False, id="it runs"),
    pytest.param("def run(self): self.plan(1)", "pass", True, id="nothing calls it"),
    pytest.param("def stop(self): self.plan(1)", "x.stop()", True, id="the plugin overrides it"),
    pytest.param("def run(self):\n        def inner(): self.plan(1)", "x.run()", False,
                 id="in an inner function"),
    pytest.param("made = self.plan(1)", "x.run()", True, id="in no method"),
    pytest.param("def run(self): super().plan(1)", "x.run()", True, id="it is its base's"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "call", "holds"), OF_SELF)
def test_a_call_of_self_counts_where_the_method_runs(
    method: str, call: str, *, holds: bool
) -> None:
    """A method of the base runs for the plugin's class if it is called, and not overridden."""
    base = f"class Base:\n    def plan(self, batch): ...\n    {method}"
    own = "def plan(self): ...\n  def stop(self): ..."

    verdicts = [verdict for verdict, _ in _told(own, f"def run_all(x): {call}", base)]

    assert (Verdict.BREAKS not in verdicts) is holds


CLS = """
class Base:
    @classmethod
    def make(cls, rank): ...
    @classmethod
    def run(cls): return cls.make(1)
"""
OF_CLASS = [
    pytest.param("@classmethod\n  def make(cls, rank): ...", HOLDS, id="a method of the class"),
    pytest.param("@staticmethod\n  def make(rank): ...", HOLDS, id="a static method"),
    pytest.param("def make(self, rank): ...",
                 (Verdict.BREAKS, "needs an instance; Base.run calls it of the class"),
                 id="a method of an instance"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "expected"), OF_CLASS)
def test_a_method_that_is_called_of_the_class_needs_no_instance(
    own: str, expected: tuple[Verdict, str]
) -> None:
    """The engine has no instance when it calls it."""
    assert _told(own, "def run_all(x): x.run()", CLS) == [expected]


OTHER = "class Other:\n  def plan(self): ...\n"
RECEIVERS = [
    pytest.param("from engine.base import Base\ndef run(x: Base): x.plan(1)", 1, id="of the base"),
    pytest.param("from engine.base import Base\ndef run(x: Other): x.plan(1)", 0, id="of another"),
    pytest.param("from engine.base import Base\ndef run(x): x.plan(1)", 0, id="of an unknown"),
    pytest.param("def run(x): x.plan(1)", 0, id="in a file that does not name the base"),
]


@pytest.mark.parametrize(("run", "num_found"), RECEIVERS)
def test_a_name_that_another_family_has_counts_of_a_known_receiver(
    run: str, num_found: int
) -> None:
    """What a value is, its annotation says."""
    verdicts = [verdict for verdict, _ in _told("def plan(self): ...", OTHER + run)]

    assert verdicts.count(Verdict.BREAKS) == num_found


def test_a_name_that_only_running_code_knows_may_be_the_base() -> None:
    """A module of the engine that makes its names is no other package."""
    base = f"{BASE}\ndef __getattr__(name): ..."
    run = "from engine.base import made\ndef run(): made.plan(1)"

    [(verdict, _)] = _told("def plan(self): ...", run, base)

    assert verdict is Verdict.BREAKS
