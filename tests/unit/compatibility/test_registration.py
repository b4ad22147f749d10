"""Classes that reach an engine by registration, or by a path that a method returns."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.registration import Registrations
from tests.unit.compatibility.pairs import class_of, pair_of

IMPORTS = "from engine.base import *\n"
GIVEN = "\nregistry.register('p', P)"
"""The engine gets the class `P`, as a platform."""


def _registrations(plugin: str, **engine: str) -> Registrations:
    return Registrations(pair_of(engine, {"m": f"{IMPORTS}{plugin}{GIVEN}"}))


def _constructors(plugin: str, **engine: str) -> list[Contact]:
    own = _registrations(plugin, **engine)
    return [*own.constructors(class_of(own.pair, "A"))]


def _members(plugin: str, **engine: str) -> list[Contact]:
    own = _registrations(plugin, **engine)
    return [*own.members(class_of(own.pair, "A"))]


NAMES = [
    pytest.param("@Base.register('a')\nclass A: ...", True, id="by a decorator"),
    pytest.param("Base.register('a', A)", True, id="by a call"),
    pytest.param("Base.load = A", True, id="by an assignment"),
    pytest.param("@final\nclass A: ...", False, id="by another decorator"),
    pytest.param("register('a', A)", False, id="by a bare function"),
    pytest.param("x = A", False, id="by a name"),
]


@pytest.mark.parametrize(("text", "expected"), NAMES)
def test_a_class_is_registered(text: str, *, expected: bool) -> None:
    """What a registry is given stands in for one of the engine's classes."""
    assert ("A" in _registrations(text).names) is expected


GETTERS = [
    pytest.param("return 'plugin.m.A'", {"plugin.m.A": ["cls"]}, id="a path"),
    pytest.param("return A", {"plugin.m.A": ["cls"]}, id="the class"),
    pytest.param("return A if x else 'plugin.m.B'", {"plugin.m.A": ["cls"], "plugin.m.B": ["cls"]},
                 id="one of two"),
    pytest.param("return 'a'", {}, id="a word"),
    pytest.param("return f()", {}, id="a result"),
    pytest.param("return f", {}, id="a function"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), GETTERS)
def test_a_getter_returns_a_class_or_its_path(body: str, expected: dict[str, list[str]]) -> None:
    """The engine calls it, and makes instances of what it gets."""
    text = f"def f(): ...\nclass A: ...\nclass P:\n  def cls(self):\n    {body}"

    assert _registrations(text).getters == expected


OWNERS = [
    pytest.param("class P(Base): ...", True, id="it derives from the engine's"),
    pytest.param("class P: ...\nx.register('p', P)", True, id="it is registered"),
    pytest.param("class P: ...\nx.register('plugin.m.P')", True, id="its path is registered"),
    pytest.param("class P: ...\ndef path(): return 'plugin.m.P'", False,
                 id="a function of the plugin's returns its path"),
    pytest.param("class P: ...\nclass Q(Base):\n  def get(self): return P", True,
                 id="a getter of one that the engine gets returns it"),
    pytest.param("class P: ...\nclass Q(P, Base): ...", True, id="one below it derives so"),
    pytest.param("class P: ...", False, id="the plugin's own"),
    pytest.param("class P: ...\nclass Q:\n  def get(self): return P", False,
                 id="a getter of the plugin's own returns it"),
    pytest.param("class P:\n  def get(self): return P", False, id="it returns itself"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), OWNERS)
def test_the_engine_calls_the_getters_of_what_it_gets(text: str, *, expected: bool) -> None:
    """A class that the plugin alone knows may have a getter of the same name."""
    head, colon, rest = text.partition(":")
    getter = f"{head}{colon}\n  def cls(self): return A\n  {rest.lstrip()}"
    pair = pair_of({"base": "class Base: ..."}, {"m": f"{IMPORTS}class A: ...\n{getter}"})

    assert ("plugin.m.A" in Registrations(pair).getters) is expected


BASE = "class Base:\n  def __init__(self, rank): ...\n"
A = "class A(Base):\n  def __init__(self, rank, size): ...\n"
FAULT = "(rank, size) needs 'size', and does not get it; it is made with (0)"

REGISTERED = [
    pytest.param("@Base.register('a')\n" + A, "from engine.base import Base\nBase(0)", [FAULT],
                 id="in place of its base"),
    pytest.param("@Base.register('a')\n" + A, "from engine.base import Base\nBase(0, 1)", [""],
                 id="with what it takes"),
    pytest.param("@Base.register('a')\n" + A, "class Base: ...\nBase(0)", [""],
                 id="beside another class of the name"),
    pytest.param("@Base.register('a')\nclass A(Base): ...",
                 "from engine.base import Base\nBase(0)", [], id="with its base's constructor"),
    pytest.param(A, "from engine.base import Base\nBase(0)", [""], id="not at all"),
    pytest.param("@Base.register('a')\n" + A.replace("  def", "  @unknown\n  def"),
                 "from engine.base import Base\nBase(0)", [],
                 id="with a constructor that only running code knows"),
    pytest.param("register(A)\nclass A:\n  def __init__(self, rank): ...",
                 "from engine.base import Base\nBase(0)", [""], id="without a base"),
]  # fmt: skip


@pytest.mark.parametrize(("plugin", "engine", "expected"), REGISTERED)
def test_a_registered_class_is_made_as_its_base_is(
    plugin: str, engine: str, expected: list[str]
) -> None:
    """Where the engine calls the base, it gets the plugin's class."""
    found = _constructors(plugin, base=BASE, m=engine)

    assert [each.why for each in found] == expected


PLATFORM = "class P:\n  def cls(self): return 'plugin.m.A'\n"
MADE = [
    pytest.param("def run(p): p.cls()(0)", [FAULT], id="the result"),
    pytest.param("def run(p):\n  made = p.cls()\n  made(0)", [FAULT], id="a variable"),
    pytest.param("def run(p):\n  path = p.cls()\n  made = load(path)\n  made(0)", [FAULT],
                 id="what is loaded by a variable"),
    pytest.param("def run(p):\n  made = load(p.cls())\n  made(0)", [FAULT], id="what is loaded"),
    pytest.param("def run(p):\n  other = load()\n  p.cls()\n  other(0)", [""],
                 id="another variable"),
    pytest.param("def run(p):\n  made = p.cls()\n  made.make(0)", [""], id="an attribute of it"),
    pytest.param("def run(p):\n  made = p.cls()\n  made()", [""],
                 id="what the engine's own does not take"),
    pytest.param("p.cls()(0)", [FAULT], id="the result outside of all functions"),
    pytest.param("f(p.cls())", [""], id="no call"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "expected"), MADE)
def test_a_class_that_a_getter_returns_is_made_as_the_engine_makes_it(
    engine: str, expected: list[str]
) -> None:
    """The engine calls what it gets, or what it loads by its path."""
    found = _constructors(A + PLATFORM, base=BASE, m=engine)

    assert [each.why for each in found] == expected


def test_a_constructor_that_does_not_fit_breaks() -> None:
    """The contact has the line of the constructor, and that of the call."""
    [found] = _constructors(A + PLATFORM, base=BASE, m="def run(p):\n  p.cls()(0)")

    assert (found.what, found.verdict) == ("A.__init__", Verdict.BREAKS)
    assert (found.at, found.engine_at) == ("plugin/m.py:3", "engine/m.py:2")


OWN = "class Q:\n  def cls(self): return 'engine.base.Base'\n"
"""A platform of the engine's that has the same getter."""
ALONE = "class A:\n  def __init__(self, rank, size): ...\n"


@pytest.mark.parametrize(
    ("engine", "expected"), [(OWN, [FAULT]), ("", [""])], ids=["with it", "without it"]
)
def test_a_class_of_no_base_is_made_as_the_engines_own(engine: str, expected: list[str]) -> None:
    """The engine's methods of the getter's name return what it stands for."""
    run = f"{engine}def run(p): p.cls()(0)"

    found = _constructors(ALONE + PLATFORM, base=BASE, m=run)

    assert [each.why for each in found] == expected


# Members

ROOT = """
class Base:
    def plan(self, batch): ...
    def _hidden(self): ...
    @property
    def size(self): ...
"""
CALL = "def run(x): x.plan(1), x._hidden(), x.size()"


def _told(plugin: str, run: str = CALL, platform: str = OWN, base: str = ROOT) -> list[str]:
    found = _members(plugin + PLATFORM, base=base, m=f"{platform}{run}")
    return [each.why for each in found]


MISSING = "run calls it; the class has none, and no Base to inherit it from"
MEMBERS = [
    pytest.param("class A: ...\n", [MISSING], id="without it"),
    pytest.param("class A:\n  def plan(self, batch): ...\n", [""], id="with it"),
    pytest.param("class A:\n  plan = other\n", [], id="with a value of its name"),
    pytest.param("class A:\n  def plan(self): ...\n",
                 ["() takes no arguments by position, and gets 1; run calls it with (1)"],
                 id="with another one"),
    pytest.param("class B:\n  def plan(self, batch): ...\nclass A(B): ...\n", [""],
                 id="with a base's"),
    pytest.param("class A(Base): ...\n", [], id="with the engine's base"),
]  # fmt: skip


@pytest.mark.parametrize(("plugin", "expected"), MEMBERS)
def test_a_class_of_no_base_needs_the_methods_that_are_called(
    plugin: str, expected: list[str]
) -> None:
    """Private methods and properties of the engine's root are not called of it."""
    assert _told(plugin) == expected


def test_a_method_that_is_missing_is_told_with_what_to_write() -> None:
    """The engine's own has its parameters."""
    [found] = _members("class A: ...\n" + PLATFORM, base=ROOT, m=OWN + CALL)

    assert (found.what, found.verdict, found.at) == ("A.plan", Verdict.BREAKS, "plugin/m.py:2")
    assert found.engine_at == "engine/m.py:3"
    assert found.remedy == "define plan(self, batch), or derive from Base"


UNCALLED = [
    pytest.param("def run(x): x.stop()", OWN, ROOT, id="which is not called"),
    pytest.param(CALL, "class Q:\n  def other(self): return 'engine.base.Base'\n", ROOT,
                 id="of what no getter returns"),
    pytest.param(CALL, OWN.replace("Base'", "Gone'"), ROOT, id="of a class that is gone"),
    pytest.param(CALL, "def cls(): return 'engine.base.Base'\n", ROOT,
                 id="of what a function returns"),
    pytest.param(CALL, OWN, ROOT + "class Other:\n  def plan(self): ...", id="that others have"),
    pytest.param("pass", OWN, ROOT + "    def run(self, x): x.plan(1)", id="in its own class"),
]  # fmt: skip


@pytest.mark.parametrize(("run", "platform", "base"), UNCALLED)
def test_a_method_is_not_missed(run: str, platform: str, base: str) -> None:
    """Only a call that can be of the plugin's class needs one."""
    assert _told("class A: ...\n", run, platform, base) == []


DECORATED = [
    pytest.param("def mixed(c):\n  return type('X', (c, Mixin), {})\n@mixed\nclass A: ...\n", [],
                 id="by a function that names it"),
    pytest.param("def mixed(n):\n  return lambda c: copy(c, Mixin)\n@mixed(1)\nclass A: ...\n", [],
                 id="by a call of one"),
    pytest.param("def mixed(c):\n  return c\n@mixed\nclass A: ...\n", [MISSING],
                 id="by one that does not name it"),
    pytest.param("@Mixin\nclass A: ...\n", [MISSING], id="by a class"),
    pytest.param("@unknown\nclass A: ...\n", [MISSING], id="by another"),
]  # fmt: skip


@pytest.mark.parametrize(("plugin", "expected"), DECORATED)
def test_a_decorator_may_copy_methods_of_a_class(plugin: str, expected: list[str]) -> None:
    """The classes that its text names are taken for mixed in."""
    assert _told(f"class Mixin:\n  def plan(self, batch): ...\n{plugin}") == expected


TYPES = [
    pytest.param("def get(p) -> type[Base]: return load(p.cls())", [MISSING], id="a class"),
    pytest.param("def get(p) -> 'Base': return load(p.cls())", [], id="an instance"),
    pytest.param("def get(p): return load(p.cls())", [], id="anything"),
    pytest.param("def get(p) -> type[x]: return load(p.cls())", [], id="what is not known"),
    pytest.param("load(p.cls())", [], id="outside of all functions"),
]


@pytest.mark.parametrize(("text", "expected"), TYPES)
def test_a_function_that_loads_a_path_says_what_it_returns(text: str, expected: list[str]) -> None:
    """Its annotation names the class that the path is to derive from."""
    load = f"from engine.base import Base\n{text}\n"

    assert _told("class A: ...\n", CALL, load) == expected


def test_a_class_that_is_returned_itself_is_of_no_annotation() -> None:
    """A getter of the plugin that returns no path is not loaded."""
    load = "from engine.base import Base\ndef get(p) -> type[Base]: return p.cls()\n"
    plugin = "class A: ...\nclass P:\n  def cls(self): return A\n"

    assert _members(plugin, base=ROOT, m=load + CALL) == []


SETTING = "class Base:\n  def __init__(self): self.size = 1\n"
READ = "the engine reads it; Base sets it, and the class does not"
ATTRIBUTES = [
    pytest.param("class A: ...\n", "def run(x): return x.size", SETTING, [READ], id="without it"),
    pytest.param("class A:\n  def __init__(self): self.size = 2\n", "def run(x): return x.size",
                 SETTING, [], id="with it"),
    pytest.param("class A: ...\n", "def run(x): x.size = 2", SETTING, [], id="only assigned"),
    pytest.param("class A: ...\n", "class B:\n  def f(self): self.other(self.size)", SETTING, [],
                 id="read of itself"),
    pytest.param("class A: ...\n", "class B:\n  size = 1\ndef run(x): return x.size", SETTING, [],
                 id="of another class with a value"),
    pytest.param("class A: ...\n", "class B:\n  def size(self): ...\ndef run(x): return x.size",
                 SETTING, [], id="of another class with a method"),
    pytest.param("class A: ...\n", "class B:\n  def f(self): self.size = 1\ndef g(x): x.size()",
                 SETTING, [], id="of another class that assigns it"),
    pytest.param("class A: ...\n", "def run(x): return x._size",
                 SETTING.replace("size", "_size"), [], id="a private one"),
]  # fmt: skip


@pytest.mark.parametrize(("plugin", "run", "base", "expected"), ATTRIBUTES)
def test_a_class_needs_the_attributes_that_the_engine_reads(
    plugin: str, run: str, base: str, expected: list[str]
) -> None:
    """The engine's own class sets them, and no other class has one of the name."""
    assert _told(plugin, run, OWN, base) == expected


def test_an_attribute_that_not_all_of_the_engines_classes_set_is_not_needed() -> None:
    """The engine has to do without it for some of its own."""
    platform = "class Q:\n  def cls(self): return 'engine.base.Base' if x else 'engine.base.B'\n"
    base = f"{SETTING}class B: ...\n"

    assert _told("class A: ...\n", "def run(x): return x.size", platform, base) == []
