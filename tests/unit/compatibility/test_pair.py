"""A plugin beside an engine."""

from __future__ import annotations

import pytest
from packaging.version import Version

from backend_caps.compatibility.contacts import contacts
from tests.unit.compatibility.pairs import class_of, module_of, pair_of, place_of

VERSIONS = [
    pytest.param("0.5.3.post1", Version("0.5.3.post1"), id="stated"),
    pytest.param(None, None, id="not stated"),
    pytest.param("unknown", None, id="no version"),
]


@pytest.mark.parametrize(("stated", "expected"), VERSIONS)
def test_an_engine_has_the_version_that_it_states(
    stated: str | None, expected: Version | None
) -> None:
    """A text that is no version counts as none."""
    assert pair_of({}, version=stated).version == expected


def test_an_unparsed_file_of_a_plugin_is_passed_by() -> None:
    """The other files are read."""
    pair = pair_of({}, {"m": "x = 1", "bad": "def"})

    assert [each.name for each in pair.modules()] == ["plugin", "plugin.m"]


ENGINE = {
    "core": """
        import os
        from engine.base import Base as Renamed
        size = 1
        class Worker(Renamed): ...
        def load():
            global loaded
            loaded = True
        def fill():
            filled = True
        """,
    "base": "class Base: ...",
    "starred": "from engine.core import *",
    "foreign": "from torch import *",
    "both": "from torch import *\nfrom engine.core import *",
    "lazy": "def __getattr__(name): ...",
    "of_lazy": "from engine.lazy import *",
    "table": """
        lazily = {"made": 1}
        def __getattr__(name):
            if name in lazily: return lazily[name]
            raise AttributeError(f"no {name}")
        """,
    "passing": """
        def __getattr__(name):
            if other is None: raise AttributeError(name)
            return getattr(other, name)
        """,
    "bound": "from engine.lazy import __getattr__",
    "one": "from engine.two import *\nfirst = 1",
    "two": "from engine.one import *\nsecond = 1",
    "bare.part": "",
    "pack.__init__": "",
    "pack.part": "",
    "pack.bare.part": "",
}
HAS = [
    pytest.param("engine.core", "size", True, id="assigned"),
    pytest.param("engine.core", "os", True, id="imported"),
    pytest.param("engine.core", "loaded", True, id="global in a function"),
    pytest.param("engine.core", "filled", False, id="local in a function"),
    pytest.param("engine.base", "loaded", False, id="global in another file"),
    pytest.param("engine.pack", "part", True, id="a part"),
    pytest.param("engine.pack", "bare", True, id="a folder without a file of its own"),
    pytest.param("engine.pack", "gone", False, id="no part"),
    pytest.param("engine.bare", "part", True, id="a part of such a folder"),
    pytest.param("engine.bare", "gone", None, id="no part of such a folder"),
    pytest.param("engine.gone", "size", False, id="of no module"),
    pytest.param("engine.lazy", "size", None, id="of a lazy module"),
    pytest.param("engine.table", "made", None, id="in the table of a lazy module"),
    pytest.param("engine.table", "gone", False, id="not in the table of a lazy module"),
    pytest.param("engine.passing", "gone", None, id="of a module that passes names on"),
    pytest.param("engine.bound", "gone", None, id="of a module that is lazy as another"),
    pytest.param("engine.starred", "size", True, id="by a star import"),
    pytest.param("engine.starred", "gone", False, id="not by a star import"),
    pytest.param("engine.foreign", "size", None, id="by a star import of another package"),
    pytest.param("engine.both", "size", True, id="by one of two star imports"),
    pytest.param("engine.both", "gone", None, id="not by the known one of two"),
    pytest.param("engine.of_lazy", "size", None, id="by a star import of a lazy module"),
    pytest.param("engine.one", "second", True, id="by star imports in a circle"),
    pytest.param("engine.one", "gone", False, id="not by star imports in a circle"),
]


@pytest.mark.parametrize(("source", "name", "expected"), HAS)
def test_a_module_has_the_names_that_it_binds(
    source: str, name: str, expected: bool | None
) -> None:
    """Of a lazy module, and of another package's names, only running code knows."""
    assert pair_of(ENGINE).has(source, name) is expected


CLASSES_AT = [
    pytest.param("engine.core.Worker", "Worker", id="in its module"),
    pytest.param("engine.core.Renamed", "Base", id="imported by it"),
    pytest.param("engine.core.load", None, id="a function"),
    pytest.param("engine.core.Gone", None, id="no class"),
    pytest.param("engine.gone.Worker", None, id="of no module"),
]


@pytest.mark.parametrize(("path", "expected"), CLASSES_AT)
def test_a_class_is_found_by_its_path(path: str, expected: str | None) -> None:
    """An import of the path's module is followed."""
    found = pair_of(ENGINE).class_at(path)

    assert (found and found.name) == expected


MODULES = [
    pytest.param("engine.core", True, id="a file"),
    pytest.param("engine.pack", True, id="a package"),
    pytest.param("engine.bare", True, id="a folder"),
    pytest.param("engine.bar", False, id="the start of a folder's name"),
]


@pytest.mark.parametrize(("source", "expected"), MODULES)
def test_a_module_is_a_file_or_a_folder(source: str, expected: bool) -> None:
    """A folder without a file of its own can be imported, too."""
    assert pair_of(ENGINE).is_module(source) is expected


MEMBERS = """
import abc, enum, typing, torch
from typing import Generic, NamedTuple, Protocol, TypeVar
T = TypeVar("T")
class Base:
    size = 1
    held: int
    def run(self):
        self.pool = 1
        other.odd = 1
    class Inner: ...
class Derived(Base): ...
class Abstract(abc.ABC): ...
class Fault(ValueError): ...
class Kind(enum.Enum):
    A = 1
class Stated(Protocol):
    size: int
class Row(NamedTuple):
    size: int
class Layer(torch.nn.Module):
    size = 1
class Lazy:
    def __getattr__(self, name): ...
class Made(make()): ...
class OfMade(Made): ...
class Of(Generic[T]): ...
class Rebound: ...
Rebound = wrap(Rebound)
class Outer:
    class Rebound: ...
"""
HAS_MEMBER = [
    pytest.param("Derived", "size", True, id="assigned in the body of a base"),
    pytest.param("Derived", "held", True, id="annotated in the body"),
    pytest.param("Derived", "run", True, id="a method"),
    pytest.param("Derived", "pool", True, id="assigned to self"),
    pytest.param("Derived", "Inner", True, id="a class"),
    pytest.param("Derived", "odd", False, id="assigned to another object"),
    pytest.param("Abstract", "gone", False, id="not of an abstract class"),
    pytest.param("Fault", "args", True, id="of an exception"),
    pytest.param("Fault", "gone", False, id="not of an exception"),
    pytest.param("Kind", "A", True, id="of an enum"),
    pytest.param("Kind", "value", True, id="of every enum"),
    pytest.param("Kind", "gone", False, id="not of an enum"),
    pytest.param("Stated", "size", True, id="of a protocol"),
    pytest.param("Stated", "gone", None, id="not stated by a protocol"),
    pytest.param("Row", "gone", None, id="not stated by a named tuple"),
    pytest.param("Layer", "size", True, id="before a base of another package"),
    pytest.param("Layer", "gone", None, id="of a base of another package"),
    pytest.param("Lazy", "gone", None, id="of a lazy class"),
    pytest.param("OfMade", "gone", None, id="of a base that is made"),
    pytest.param("Of", "gone", False, id="not of a generic class"),
    pytest.param("Rebound", "gone", None, id="of a class whose name is assigned again"),
    pytest.param("Outer", "gone", False, id="not of a class around another"),
]


@pytest.mark.parametrize(("name", "member", "expected"), HAS_MEMBER)
def test_a_class_has_what_it_and_its_bases_state(
    name: str, member: str, expected: bool | None
) -> None:
    """Of bases that are not found, and of what is made at run time, only running code knows."""
    pair = pair_of({"m": MEMBERS})
    classes = [each for each in module_of(pair, "engine.m").classes if not each.outer]
    definition = next(each for each in classes if each.name == name)

    assert pair.has_member(definition, member) is expected


def test_an_inner_class_is_not_the_name_of_its_file() -> None:
    """What the file assigns to that name is another object."""
    pair = pair_of({"m": MEMBERS})
    inner = class_of(pair, "Rebound", "engine.m")

    assert inner.outer == "Outer."
    assert pair.has_member(inner, "gone") is False


GUARDED = """
import engine
from engine.core import Worker
if engine.__version__ >= "2":
    class New(Worker): ...
class Own(Worker):
    def step(self, old): ...
    if engine.__version__ >= "2":
        def step(self, new): ...
        def late(self): ...
"""


def test_what_another_version_guards_is_not_defined() -> None:
    """Classes and methods under a condition that fails with this engine are left out."""
    pair = pair_of({"core": "class Worker: ..."}, {"m": GUARDED}, version="1.0")
    module = module_of(pair)

    methods = pair.own_methods(class_of(pair, "Own"))

    assert [each.name for each in pair.plugin_classes(module)] == ["Own"]
    assert {name: method.args.args[-1].arg for name, method in methods.items()} == {"step": "old"}


def test_what_this_version_guards_is_defined() -> None:
    """The last definition counts."""
    pair = pair_of({"core": "class Worker: ..."}, {"m": GUARDED}, version="2.0")
    module = module_of(pair)

    methods = pair.own_methods(class_of(pair, "Own"))

    assert [each.name for each in pair.plugin_classes(module)] == ["New", "Own"]
    assert {name: method.args.args[-1].arg for name, method in methods.items()} == {
        "step": "new",
        "late": "self",
    }


SITES = {
    "core": """
        class Worker:
            def step(self): ...
        def step(): ...
        def run(worker: Worker):
            worker.step()
            step()
        """,
    "other": "def run(any):\n  any.step()",
    "bad": "def (:\n  any.step()",
}


def test_calls_are_of_an_attribute() -> None:
    """A call of a function of the name is none, and a file that cannot be parsed has none."""
    pair = pair_of(SITES)

    assert [each.at for each in pair.sites("step")] == ["engine/core.py:6", "engine/other.py:2"]
    assert [each.at for each in pair.sites("step", ["engine/core.py"])] == ["engine/core.py:6"]
    assert [*pair.sites("gone")] == []


def test_a_family_alone_has_a_method_unless_others_define_it() -> None:
    """Functions of the name are others, and classes that do not derive from it."""
    texts = {
        "core": """
            class Worker:
                def step(self): ...
                def load(self): ...
                def fill(self): ...
            class Fast(Worker):
                def step(self): ...
            class Other:
                def load(self): ...
            def fill(): ...
            """
    }
    pair = pair_of(texts)
    root = class_of(pair, "Worker", "engine.core")

    found = {name: pair.is_only_family(root, name) for name in ("step", "load", "fill")}

    assert found == {"step": True, "load": False, "fill": False}


def test_a_method_is_the_engines_unless_the_plugin_has_it() -> None:
    """`after` a class, as `super()` does, it may be the engine's again."""
    text = "from engine.core import Worker\nclass Own(Worker):\n  def step(self): ..."
    pair = pair_of({"core": "class Worker:\n  def step(self): ...\n  def run(self): ..."},
                   {"m": text})  # fmt: skip
    own = class_of(pair, "Own")

    found = [
        pair.method(own, "run"),
        pair.method(own, "step"),
        pair.method(own, "step", after=own),
        pair.method(own, "gone"),
    ]

    assert [each and each.at for each in found] == ["engine/core.py:3", None, "engine/core.py:2",
                                                    None]  # fmt: skip


def test_an_expression_that_is_no_name_means_nothing() -> None:
    """A call is followed elsewhere."""
    pair = pair_of(ENGINE, {"m": "from engine import core"})

    assert pair.resolve(*place_of(pair, "core()")) == []
    assert pair.resolve(*place_of(pair, "core")) == [module_of(pair, "engine.core")]


def test_a_name_whose_condition_names_it_has_all_its_meanings() -> None:
    """The condition is not decided by itself."""
    text = "import engine\nif engine: from engine import core as engine\nengine.size"
    pair = pair_of(ENGINE, {"m": text})

    assert [each.what for each in contacts(pair)] == ["engine", "engine.core", "engine.size"]


BRANCHES = [
    pytest.param("if engine_version_is('1.0'):", "New", id="its own version"),
    pytest.param("if engine_version_is('0.9'):", "Old", id="another version"),
    pytest.param("if hasattr(A, 'new'):", "New", id="what the class itself has"),
    pytest.param("if x:", "New", id="an unknown one, the first"),
]


@pytest.mark.parametrize(("condition", "expected"), BRANCHES)
def test_a_base_is_of_the_branch_that_runs(condition: str, expected: str) -> None:
    """A condition that asks for what the class has is not decided while its bases are found."""
    text = f"""
        from engine.core import New, Old
        {condition}
            Base = New
        else:
            Base = Old
        class A(Base): ...
        """
    pair = pair_of({"core": "class Old: ...\nclass New: ..."}, {"m": text})

    assert [each.name for each in pair.classes.ancestors(class_of(pair, "A"))] == ["A", expected]


def test_a_base_that_depends_on_the_class_itself_is_decided_with_the_first() -> None:
    """With the first base the class has no such attribute, so the other is taken."""
    text = """
        class Old: ...
        class New: ...
        if hasattr(Worker, "new"):
            Base = New
        else:
            Base = Old
        class Worker(Base): ...
        """
    pair = pair_of({"core": text}, {"m": "from engine.core import Worker\nclass A(Worker): ..."})

    names = [each.name for each in pair.classes.ancestors(class_of(pair, "A"))]
    assert names == ["A", "Worker", "Old"]
