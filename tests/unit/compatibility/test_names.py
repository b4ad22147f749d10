"""The names of an engine that a plugin imports and reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from backend_caps.compatibility.contact import Contact, ContactKind, Form, Verdict
from backend_caps.compatibility.contacts import contacts
from backend_caps.compatibility.names import imports, is_built, reads
from tests.unit.compatibility.pairs import pair_of, place_of

OPEN = "it may be compiled, left out of this source, or made at run time"
ENGINE = {
    "core": """
        import functools
        import engine.left_out
        class Worker:
            size = 1
            made = functools.partial(int)
            held: int
            def __init__(self):
                self.pool = None
            def run(self): ...
            @property
            def last(self): ...
            @functools.partial(int)
            def wrapped(self): ...
        class Special(Worker):
            def only_special(self): ...
        class Bare: ...
        def load(): ...
        def feed(runner):
            runner.fed = 1
            return getattr(runner, "asked", None)
        """,
    "_C": "def add(): ...",
    "moved": "class Moved: ...\ndef twice(): ...",
    "other": "def twice(): ...\nTEXT = 'class Gone:'",
    "lazy": "def __getattr__(name): ...",
}


def _found(text: str, kind: ContactKind) -> Iterator[Contact]:
    pair = pair_of(ENGINE, {"m": text})
    return (each for each in contacts(pair) if each.kind is kind)


def _imported(text: str) -> list[tuple[str, Verdict, str]]:
    found = _found(text, ContactKind.IMPORT)
    return [(each.what, each.verdict, each.why) for each in found]


IMPORTS = [
    pytest.param("import engine.core", "engine.core", Verdict.HOLDS, "", id="a module"),
    pytest.param("import os, engine", "engine", Verdict.HOLDS, "", id="a module beside another"),
    pytest.param("import engine.gone", "engine.gone", Verdict.BREAKS, "engine.gone is not there",
                 id="no module"),
    pytest.param("from engine.core import load", "engine.core.load", Verdict.HOLDS, "",
                 id="a name"),
    pytest.param("from engine import core", "engine.core", Verdict.HOLDS, "", id="a part"),
    pytest.param("from engine.core import *", "engine.core", Verdict.HOLDS, "", id="all names"),
    pytest.param("from engine.core import gone", "engine.core.gone", Verdict.BREAKS,
                 "engine.core.gone is not there", id="no name"),
    pytest.param("from engine.gone import load", "engine.gone.load", Verdict.BREAKS,
                 "engine.gone is not there", id="a name of no module"),
    pytest.param("from engine.lazy import any", "engine.lazy.any", Verdict.NOT_CHECKED, OPEN,
                 id="a name of a lazy module"),
    pytest.param("import engine._C.absent", "engine._C.absent", Verdict.NOT_CHECKED, OPEN,
                 id="a compiled module"),
    pytest.param("from engine._version import version", "engine._version.version",
                 Verdict.NOT_CHECKED, OPEN, id="a module that a build writes"),
    pytest.param("from engine.left_out import a", "engine.left_out.a", Verdict.NOT_CHECKED, OPEN,
                 id="a module that the engine imports itself"),
    pytest.param("from engine.left_out import Moved", "engine.left_out.Moved", Verdict.BREAKS,
                 "engine.left_out is not there", id="a name that the engine has elsewhere"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "verdict", "why"), IMPORTS)
def test_an_import_holds_where_the_engine_has_the_name(
    text: str, what: str, verdict: Verdict, why: str
) -> None:
    """What is compiled, built, lazy or left out is not checked."""
    assert _imported(text) == [(what, verdict, why)]


def test_an_import_of_another_package_is_no_contact() -> None:
    """A package whose name starts as the engine's is another, too."""
    assert _imported("import os, engineer\nfrom engineer.core import load") == []


HANDLERS = [
    pytest.param("except ImportError: gone = None", Verdict.HOLDS, id="another value"),
    pytest.param("except ImportError: from engine.core import load as gone", Verdict.HOLDS,
                 id="another name of the engine"),
    pytest.param("except ImportError: from math import pi as gone", Verdict.HOLDS,
                 id="an import of the name"),
    pytest.param("except ImportError: import gone", Verdict.HOLDS, id="a module of the name"),
    pytest.param("except ImportError:\n  def gone(): ...", Verdict.HOLDS, id="a function"),
    pytest.param("except Exception:\n  class gone: ...", Verdict.HOLDS, id="a class"),
    pytest.param("except ImportError: pass", Verdict.CHANGED, id="nothing"),
    pytest.param("except ImportError: found = gone", Verdict.CHANGED, id="another name"),
    pytest.param("except ImportError:\n  def lost(): ...", Verdict.CHANGED, id="another function"),
    pytest.param("except (KeyError, ImportError): pass", Verdict.CHANGED, id="among others"),
    pytest.param("except KeyError: gone = None", Verdict.BREAKS, id="not caught"),
    pytest.param("except KeyError: pass\nexcept ImportError: pass", Verdict.CHANGED,
                 id="a second handler"),
    pytest.param("except ImportError: pass\nexcept KeyError: pass", Verdict.CHANGED,
                 id="a first handler"),
]  # fmt: skip


@pytest.mark.parametrize(("handler", "verdict"), HANDLERS)
def test_a_lost_import_that_is_caught_does_not_break(handler: str, verdict: Verdict) -> None:
    """It holds where the handler gives the name another value."""
    found = _imported(f"try:\n  from engine.core import gone\n{handler}")

    assert (found[0][0], found[0][1]) == ("engine.core.gone", verdict)


def test_a_caught_loss_names_the_line_of_its_handler() -> None:
    """It raises nothing, and the name has no value."""
    text = "try:\n  from engine.core import gone\nexcept ImportError: pass"

    [(_, _, why)] = _imported(text)

    assert why == "engine.core.gone is not there, and line 3 catches the error"


REMEDIES = [
    pytest.param("from engine.core import Moved", "from engine.moved import Moved", id="one"),
    pytest.param("from engine.core import twice", "", id="two"),
    pytest.param("from engine.core import Gone", "", id="a text alone"),
    pytest.param("import engine.gone", "", id="a module"),
    pytest.param("from engine.core import load", "", id="nothing is lost"),
]


@pytest.mark.parametrize(("text", "remedy"), REMEDIES)
def test_a_lost_name_is_imported_from_where_it_is_defined(text: str, remedy: str) -> None:
    """The one module that defines it is named."""
    [found] = _found(text, ContactKind.IMPORT)

    assert found.remedy == remedy


BUILT = [
    pytest.param("engine._C.ops", True, id="compiled"),
    pytest.param("engine.flash_C", True, id="compiled, by its end"),
    pytest.param("engine._version.version", True, id="written by a build"),
    pytest.param("engine.version.a.b", False, id="below such a name"),
    pytest.param("_C.core.load", False, id="the package"),
]


@pytest.mark.parametrize(("whole", "expected"), BUILT)
def test_a_built_module_is_told_by_its_name(whole: str, expected: bool) -> None:
    """A source may lack it."""
    assert is_built(whole) is expected


def test_other_nodes_import_and_read_nothing() -> None:
    """A name alone is neither."""
    pair = pair_of(ENGINE, {"m": ""})
    _, place = place_of(pair, "engine")

    assert [*imports(pair, place), *reads(pair, place)] == []


HEAD = """
import engine.core
from engine import core, lazy, _C
from engine.core import Worker, load
class Own: ...
"""
READS = [
    pytest.param("core.load", [("engine.core.load", Verdict.HOLDS)], id="of a module"),
    pytest.param("engine.core", [("engine.core", Verdict.HOLDS)], id="a module"),
    pytest.param("core.gone", [("engine.core.gone", Verdict.BREAKS)], id="gone"),
    pytest.param("lazy.gone", [("engine.lazy.gone", Verdict.NOT_CHECKED)], id="of a lazy module"),
    pytest.param("_C.gone", [("engine._C.gone", Verdict.NOT_CHECKED)], id="of a compiled module"),
    pytest.param("Worker.run", [("Worker.run", Verdict.HOLDS)], id="of a class"),
    pytest.param("Worker.lost", [("Worker.lost", Verdict.BREAKS)], id="gone of a class"),
    pytest.param("Worker().pool", [("Worker.pool", Verdict.HOLDS)], id="of an instance"),
    pytest.param("Worker().lost", [("Worker.lost", Verdict.BREAKS)], id="gone of an instance"),
    pytest.param("Worker().fed", [("Worker.fed", Verdict.NOT_CHECKED)], id="assigned elsewhere"),
    pytest.param("Worker().asked", [("Worker.asked", Verdict.NOT_CHECKED)], id="asked for"),
    pytest.param("def f(x: core.Bare): x.lost", [("Bare.lost", Verdict.NOT_CHECKED)],
                 id="of a class without attributes"),
    pytest.param("Worker().only_special", [("Worker.only_special", Verdict.NOT_CHECKED)],
                 id="of a subclass"),
    pytest.param("Worker.__name__", [], id="of every class"),
    pytest.param("Own.gone", [], id="of a class of the plugin"),
    pytest.param("Own().gone", [], id="of its instance"),
    pytest.param("load().gone", [], id="of an unknown object"),
    pytest.param("core.own = 1", [], id="assigned, not read"),
]  # fmt: skip


def _read(text: str) -> list[tuple[str, Verdict]]:
    return [(each.what, each.verdict) for each in _found(text, ContactKind.READ)]


@pytest.mark.parametrize(("text", "expected"), READS)
def test_a_read_holds_where_the_engine_has_the_attribute(
    text: str, expected: list[tuple[str, Verdict]]
) -> None:
    """What something may assign, or a subclass has, is not checked."""
    assert _read(HEAD + text) == expected


METHODS = [
    pytest.param("class A(Worker):\n  def f(self): self.lost", [("A.lost", Verdict.BREAKS)],
                 id="of self"),
    pytest.param("class A(Worker):\n  @classmethod\n  def f(cls): cls.lost",
                 [("A.lost", Verdict.BREAKS)], id="of the class"),
    pytest.param("class A(Worker):\n  @classmethod\n  def f(cls): cls.run",
                 [("A.run", Verdict.HOLDS)], id="of the class, which has it"),
    pytest.param("def f(cls): cls.lost", [], id="of no class"),
    pytest.param("class A:\n  def f(self): self.lost", [], id="of a class of the plugin alone"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), METHODS)
def test_a_read_of_self_is_of_the_class_around_it(
    text: str, expected: list[tuple[str, Verdict]]
) -> None:
    """The class has to derive from one of the engine's."""
    assert _read(HEAD + text) == expected


def test_a_lost_read_that_is_caught_is_changed() -> None:
    """It raises nothing; another value is used."""
    text = "try: found = Worker.lost\nexcept AttributeError: found = None"

    [found] = _found(HEAD + text, ContactKind.READ)

    assert (found.verdict, found.why) == (
        Verdict.CHANGED,
        "Worker.lost is not there, and line 7 catches the error",
    )


FORMS = [
    pytest.param("Worker.run", Form.CALLED, id="a method"),
    pytest.param("Special.run", Form.CALLED, id="a method of a base"),
    pytest.param("Worker.last", Form.VALUE, id="a property"),
    pytest.param("Worker.size", Form.VALUE, id="a number"),
    pytest.param("Worker.made", None, id="another value"),
    pytest.param("Worker.wrapped", None, id="a method with an unknown decorator"),
    pytest.param("Worker.held", None, id="no value"),
    pytest.param("core.load", None, id="of a module"),
]


@pytest.mark.parametrize(("text", "form"), FORMS)
def test_a_read_has_the_form_of_what_the_class_defines(text: str, form: Form | None) -> None:
    """A method is called, a property is read; of another value only running code knows."""
    [found] = _found(f"{HEAD}from engine.core import Special\n{text}", ContactKind.READ)

    assert found.form is form


def test_a_read_states_the_condition_that_it_is_under() -> None:
    """Conditions that nothing decides are kept in the plugin's words."""
    [found] = _found(f"{HEAD}if flag: core.gone", ContactKind.READ)

    assert ast.unparse(ast.parse(found.given)) == "flag"
