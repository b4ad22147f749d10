"""Methods that an engine needs of a plugin's class."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.hooks import hooks
from tests.unit.compatibility.pairs import class_of, pair_of

IMPORTS = "from abc import ABC, ABCMeta, abstractmethod\nfrom typing import Protocol\n"
OWN = "from engine.base import *\nclass A(Base): ...\nmake(A)"
"""A plugin that has instances of its class made."""


def _lacking(
    base: str, plugin: str = OWN, *, run: str = "", called: tuple[str, ...] = ()
) -> list[Contact]:
    """List what the plugin's class A lacks, where `engine.base` and `engine.run` are given."""
    engine = {"base": IMPORTS + dedent(base), "run": run}
    pair = pair_of(engine, {"m": IMPORTS + dedent(plugin)})
    return [*hooks(pair, class_of(pair, "A"), called)]


def _told(*texts: str, run: str = "", called: tuple[str, ...] = ()) -> list[tuple[Verdict, str]]:
    found = _lacking(*texts, run=run, called=called)
    return [(each.verdict, each.why) for each in found]


ABSTRACT = (Verdict.BREAKS, "Base.plan is abstract: no instance can be made")
BASES = [
    pytest.param("class Base(ABC):\n  @abstractmethod\n  def plan(self): ...", [ABSTRACT],
                 id="an abstract class"),
    pytest.param("class Base(metaclass=ABCMeta):\n  @abstractmethod\n  def plan(self): ...",
                 [ABSTRACT], id="by its metaclass"),
    pytest.param("class Base(Protocol):\n  @abstractmethod\n  def plan(self): ...", [ABSTRACT],
                 id="a protocol"),
    pytest.param("class Root(ABC): ...\nclass Base(Root):\n"
                 "  @abstractmethod\n  def plan(self): ...", [ABSTRACT], id="by its base"),
    pytest.param("class Base:\n  @abstractmethod\n  def plan(self): ...", [],
                 id="a class that does not look"),
    pytest.param("class Base(ABC):\n  @classmethod\n  @abstractmethod\n  def plan(cls): ...", [],
                 id="a method of the class"),
    pytest.param("class Base(ABC):\n  @abstractmethod\n  def __plan(self): ...", [],
                 id="a private one"),
    pytest.param("class Base(ABC):\n  def plan(self): raise NotImplementedError", [],
                 id="one that only raises"),
    pytest.param("class Base(ABC):\n  def plan(self): ...", [], id="a plain one"),
]  # fmt: skip


def test_a_class_that_lost_a_base_may_have_an_abstract_method() -> None:
    """The base that is lost may define it."""
    base = "class Base(ABC):\n  @abstractmethod\n  def plan(self): ..."
    own = "from engine.base import *\nfrom engine.gone import Mixin\nclass A(Base, Mixin): ...\nA()"

    assert _told(base, own) == []


@pytest.mark.parametrize(("base", "expected"), BASES)
def test_an_abstract_method_keeps_a_class_from_having_instances(
    base: str, expected: list[tuple[Verdict, str]]
) -> None:
    """Where nothing looks for abstract methods, one is needed only when it is called."""
    assert _told(base) == expected


BASE = "class Base(ABC):\n  @abstractmethod\n  def plan(self): ..."
CLASSES = [
    pytest.param("class A(Base): ...\nmake(A)", 1, id="without it"),
    pytest.param("class A(Base):\n  def plan(self): ...\nmake(A)", 0, id="with it"),
    pytest.param("class A(Base):\n  plan = other\nmake(A)", 0, id="with a value of its name"),
    pytest.param("class A(Base): ...", 0, id="of which no instance is made"),
    pytest.param("class A(Base):\n  @abstractmethod\n  def own(self): ...\nmake(A)", 0,
                 id="that is abstract itself"),
    pytest.param("class A(Base): ...\nclass B(A):\n  def plan(self): ...\nmake(B)", 0,
                 id="whose subclass has it"),
    pytest.param("class A(Base): ...\nclass B(A): ...\nmake(B)", 1, id="whose subclass has none"),
    pytest.param("class B(Base): ...\nclass A(B): ...\nmake(A)", 0,
                 id="whose base in the plugin is told of"),
    pytest.param("class B:\n  def plan(self): ...\nclass A(B, Base): ...\nmake(A)", 0,
                 id="whose other base has it"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "num_found"), CLASSES)
def test_a_class_of_which_instances_are_made_needs_an_abstract_method(
    text: str, num_found: int
) -> None:
    """It may have it from any base; of several classes without, the first is told of."""
    assert len(_lacking(BASE, f"from engine.base import Base\n{text}")) == num_found


def test_what_is_lacking_is_told_with_what_to_write() -> None:
    """The parameters are the base's."""
    base = "class Base(ABC):\n  @abstractmethod\n  def plan(self, batch, *, size=1): ..."

    [found] = _lacking(base)

    assert (found.what, found.at, found.engine_at) == (
        "A.plan",
        "plugin/m.py:4",
        "engine/base.py:5",
    )
    assert found.remedy == "define plan(batch, *, size=…)"


RAISING = """
class Base:
    def plan(self, batch):
        '''Plan a batch.'''
        raise NotImplementedError
class Own(Base):
    def plan(self, batch): return 1
"""
RUN = "from engine.base import Base\ndef run(x: Base): x.plan(1)"
AT = "engine/run.py:2"
CALLED = "run calls it, and Base.plan only raises"
CALLS = [
    pytest.param(RUN, (AT,), [(Verdict.BREAKS, CALLED)], id="by what the plugin calls"),
    pytest.param(RUN, (), [(Verdict.NOT_CHECKED, CALLED)], id="by others"),
    pytest.param("def run(x: Base): x.stop(1)", (AT,), [], id="not at all"),
    pytest.param("def run(x): x.plan(1, 2)", (AT,), [], id="with what the base does not take"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "called", "expected"), CALLS)
def test_a_method_that_only_raises_is_needed_where_it_is_called(
    run: str, called: tuple[str, ...], expected: list[tuple[Verdict, str]]
) -> None:
    """Whether the plugin gets to a call that it does not make itself, running code knows."""
    assert _told(RAISING, run=run, called=called) == expected


WITHOUT = [
    pytest.param("", Verdict.BREAKS, id="none"),
    pytest.param("class Other(Base): ...", Verdict.NOT_CHECKED, id="one"),
    pytest.param("class Other(Base): ...\nclass Third(Base): ...", Verdict.HOLDS, id="two"),
]


@pytest.mark.parametrize(("classes", "verdict"), WITHOUT)
def test_classes_of_the_engine_may_do_without_a_method(classes: str, verdict: Verdict) -> None:
    """What several of them lack is not called of each class."""
    found = _told(f"{RAISING}\n{classes}", run=RUN, called=(AT,))

    assert [told for told, _ in found] == [verdict]


def test_an_abstract_method_that_a_class_is_called_for_is_needed() -> None:
    """A backend's class methods are called without an instance."""
    base = "class Base(ABC):\n  @classmethod\n  @abstractmethod\n  def plan(cls): ..."
    run = "def run(x): x.plan()"

    assert _told(base, run=run, called=("engine/run.py:1",)) == [(Verdict.BREAKS, CALLED)]


def test_an_abstract_method_that_returns_a_value_is_not_needed() -> None:
    """A class may call it, as it is."""
    base = "class Base(ABC):\n  @classmethod\n  @abstractmethod\n  def plan(cls): return 1"

    assert _told(base, run="def run(x): x.plan()", called=("engine/run.py:1",)) == []


PASSING = [
    pytest.param("class Group(Base):\n  def plan(self, batch): self.first.plan(batch)", 0,
                 id="by its own method of the name"),
    pytest.param("class Group(Base):\n  def run(self, batch): self.first.plan(batch)", 1,
                 id="by another method"),
    pytest.param("class Group:\n  def run(self, batch): self.first.plan(batch)", 1,
                 id="by another class"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "num_found"), PASSING)
def test_a_class_may_pass_a_call_on_to_others_of_its_family(text: str, num_found: int) -> None:
    """Its method is called itself first, and that call is the one to look at."""
    run = f"from engine.base import Base\n{text}"

    assert len(_told(RAISING, run=run)) == num_found


def test_a_class_of_another_family_passes_no_call_on() -> None:
    """Its method of the name may be the one that calls the plugin's class first."""
    run = "from engine.base import Base\nclass B:\n  def plan(self, x: Base): x.plan(1)"

    assert [why for _, why in _told(RAISING, run=run)] == [
        "B.plan calls it, and Base.plan only raises"
    ]


PERMITTED = "def run(x):\n  if x.can_plan: x.plan(1)"
PERMISSIONS = [
    pytest.param("  can_plan = False", "pass", 0, id="false"),
    pytest.param("  can_plan = True", "pass", 1, id="true"),
    pytest.param("  can_plan = is_on()", "pass", 1, id="made by a call"),
    pytest.param("  can_plan = False", "def f(self): self.can_plan = True", 1,
                 id="false, and assigned"),
    pytest.param("  can_plan = False", "can_plan = True", 1, id="true in the plugin"),
    pytest.param("  can_plan = True", "can_plan = False", 0, id="false in the plugin"),
    pytest.param("  @property\n  def can_plan(self): ...", "pass", 1, id="a property"),
    pytest.param("  pass", "pass", 1, id="not there"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "own", "num_found"), PERMISSIONS)
def test_a_call_under_a_permission_that_is_off_is_not_made(
    base: str, own: str, num_found: int
) -> None:
    """An attribute of the class says that it does not do this."""
    text = f"class Base:\n{base}\n  def plan(self, batch): raise NotImplementedError"
    plugin = f"from engine.base import Base\nclass A(Base):\n  {own}"

    assert len(_told(text, plugin, run=PERMITTED)) == num_found
