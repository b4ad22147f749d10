"""Classes that a plugin names by a path in a text."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.contacts import contacts
from tests.unit.compatibility.pairs import pair_of

ENGINE = {
    "ops": "class Old: ...\nfrom torch import *",
    "old": "class Old: ...\nfrom . import lost",
    "lazy": "def __getattr__(name): ...",
}


def _found(text: str) -> list[Contact]:
    found = contacts(pair_of(ENGINE, {"m": dedent(text)}))
    return [each for each in found if each.kind is ContactKind.IMPORT]


def _named(text: str) -> list[str]:
    return [each.what for each in _found(text)]


NAMED = [
    pytest.param("def f(): return 'engine.old.Old'", id="returned"),
    pytest.param("x = 'engine.old.Old'", id="assigned"),
    pytest.param("x: str = 'engine.old.Old'", id="assigned with an annotation"),
    pytest.param("x = y if z else 'engine.old.Old'", id="one of two"),
    pytest.param("x = {'old': 'engine.old.Old', **y}", id="a value of a dictionary"),
    pytest.param("register('engine.old.Old')", id="given"),
    pytest.param("register(name='engine.old.Old')", id="given by name"),
    pytest.param("x = 'engine.old:Old'", id="in an entry point's form"),
]
NOT_NAMED = [
    pytest.param("logger.info('engine.old.Old')", id="what is logged"),
    pytest.param("getLogger('engine.old.Old')", id="a logger"),
    pytest.param("x = {'engine.old.Old': 1}", id="a key"),
    pytest.param("'engine.old.Old'", id="a docstring"),
    pytest.param("x = 'torch.nn.Module'", id="another package's"),
    pytest.param("x = 'engine.old.old'", id="no class"),
    pytest.param("x = 'Old'", id="a word"),
    pytest.param("x = 'see engine.old.Old'", id="a sentence"),
    pytest.param("def f(): return\nx: str\ny = 1", id="no text"),
]


@pytest.mark.parametrize("text", NAMED)
def test_a_path_that_is_given_on_is_looked_for(text: str) -> None:
    """The engine may import it."""
    assert _named(text) == ["engine.old.Old"]


@pytest.mark.parametrize("text", NOT_NAMED)
def test_another_text_is_no_path(text: str) -> None:
    """A path has lower-case modules and a class, of the engine or the plugin."""
    assert _named(text) == []


CLASSES = [
    pytest.param("engine.old.Old", Verdict.HOLDS, "", id="it is there"),
    pytest.param("plugin.m.Own", Verdict.HOLDS, "", id="the plugin's"),
    pytest.param("engine.old.New", Verdict.BREAKS, "engine.old.New is not there", id="no class"),
    pytest.param("plugin.m.New", Verdict.BREAKS, "plugin.m.New is not there",
                 id="no class of the plugin's"),
    pytest.param("engine.new.Old", Verdict.BREAKS, "engine.new.Old is not there", id="no module"),
    pytest.param("engine._C.Old", Verdict.NOT_CHECKED, "only running code knows it",
                 id="of a compiled module"),
    pytest.param("engine.lazy.Old", Verdict.NOT_CHECKED, "only running code knows it",
                 id="of a module that makes its names"),
    pytest.param("engine.ops.inner.Old", Verdict.NOT_CHECKED, "only running code knows it",
                 id="in what a module may import"),
    pytest.param("engine.old.lost.Old", Verdict.NOT_CHECKED, "only running code knows it",
                 id="in what a module imports"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "verdict", "why"), CLASSES)
def test_a_path_needs_its_module_and_class(path: str, verdict: Verdict, why: str) -> None:
    """What is compiled, or a name of a module, only running code knows."""
    [found] = _found(f"class Own: ...\nx = {path!r}")

    assert (found.what, found.verdict, found.why) == (path, verdict, why)


def test_a_lost_path_of_an_enum_is_a_change() -> None:
    """The member may never be chosen."""
    [member] = _found("class Backend(Enum):\n  OLD = 'engine.gone.Old'")
    [returned] = _found("class Backend(Enum):\n  def path(self): return 'engine.gone.Old'")

    assert (member.verdict, returned.verdict) == (Verdict.CHANGED, Verdict.BREAKS)


CHOSEN = [
    pytest.param("x.is_on", [("engine.old.Old", "x.is_on"), ("engine.gone.Old", "not x.is_on")],
                 id="by running code"),
    pytest.param("hasattr(engine, 'gone')", [("engine.gone.Old", "not hasattr(engine, 'gone')")],
                 id="by what the engine lacks"),
]  # fmt: skip


@pytest.mark.parametrize(("test", "expected"), CHOSEN)
def test_each_path_of_a_choice_is_looked_for(test: str, expected: list[tuple[str, str]]) -> None:
    """One that the engine rules out is never returned."""
    paths = f"'engine.old.Old' if {test} else 'engine.gone.Old'"

    found = _found(f"import engine\ndef f(x): return {paths}")

    assert [(each.what, each.given) for each in found if each.what != "engine"] == expected


def test_a_path_has_the_condition_it_is_used_under() -> None:
    """A plugin may choose among paths."""
    [found] = _found("def f(x):\n  if x.is_on: return 'engine.old.Old'")

    assert (found.given, found.at) == ("x.is_on", "plugin/m.py:2")
