"""The points at which a plugin meets an engine."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.contact import ContactKind
from backend_caps.compatibility.contacts import contacts
from tests.unit.compatibility.pairs import pair_of

ENGINE = {
    "core": """
        class Root:
            def stop(self): ...
        class Worker(Root):
            def __init__(self, size): ...
            def step(self): self.idle()
            def idle(self): ...
            def rest(self): ...
        def load(path): ...
        def run(worker):
            worker.step()
            worker.stop()
        """
}
KINDS = [
    pytest.param("import engine", {(ContactKind.IMPORT, "engine")}, id="an import"),
    pytest.param("import engine.core\nengine.core.load('a')",
                 {(ContactKind.IMPORT, "engine.core"), (ContactKind.READ, "engine.core"),
                  (ContactKind.READ, "engine.core.load"), (ContactKind.CALL, "load")}, id="a call"),
    pytest.param("from engine import core\ncore.load = print",
                 {(ContactKind.IMPORT, "engine.core"), (ContactKind.PATCH, "engine.core.load")},
                 id="a patch"),
    pytest.param("from engine.core import Worker\nclass A(Worker):\n  def step(self): ...",
                 {(ContactKind.IMPORT, "engine.core.Worker"), (ContactKind.CLASS, "A"),
                  (ContactKind.OVERRIDE, "A.step")}, id="a class and a method"),
    pytest.param("class A:\n  def step(self): ...", set(), id="nothing of the engine"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), KINDS)
def test_each_use_of_an_engine_is_a_contact(
    text: str, expected: set[tuple[ContactKind, str]]
) -> None:
    """Imports, reads, calls, patches, classes and overrides are."""
    found = contacts(pair_of(ENGINE, {"m": text}))

    assert {(each.kind, each.what) for each in found} == expected


def test_a_class_lists_what_it_inherits_and_the_engine_calls() -> None:
    """Its own methods, and those that the engine does not call, are left out."""
    own = "from engine.core import Worker\nclass A(Worker): ...\nclass B(A):\n  def step(self): ..."

    found = contacts(pair_of(ENGINE, {"m": own}))

    classes = {each.what: each for each in found if each.kind is ContactKind.CLASS}
    a, b = classes["A"], classes["B"]
    assert (a.inherited, a.called_of_self, a.own) == (("step", "stop"), ("idle",), ())
    assert (b.inherited, b.called_of_self, b.own) == (("stop",), ("idle",), ("step",))


def test_a_method_that_is_taken_for_another_class_is_not_there_for_the_engine() -> None:
    """It is used, whatever the engine has."""
    text = "from engine.core import Worker\nclass A(Worker):\n"
    text += "  def step(self): ...\n  def stop(self): ..."
    taken = "\nOther.step = A.step\nA.stop(1)"

    found = contacts(pair_of(ENGINE, {"m": f"{text}{taken}"}))

    assert [each.own for each in found if each.kind is ContactKind.CLASS] == [("stop",)]


BODIES = [
    pytest.param("level = 1", ("level", "1"), id="a number"),
    pytest.param("level: int = -1", ("level", "-1"), id="with a type"),
    pytest.param("level = None", ("level", "None"), id="nothing"),
    pytest.param("level = Level.HIGH", None, id="of another name"),
    pytest.param("level = 1\n    level = 2", None, id="one of two"),
    pytest.param("level: int", None, id="a type alone"),
    pytest.param("def level(self): return False", ("level()", "False"), id="a method"),
    pytest.param("def level(self):\n        'Says it.'\n        return 'low'",
                 ("level()", "'low'"), id="a method that says what it does"),
    pytest.param("def level(self): return self.other", None, id="a method that works it out"),
    pytest.param("def level(self): raise ValueError", None, id="a method that returns nothing"),
    pytest.param("def level(self):\n        if self.a: return 1\n        return 2", None,
                 id="a method with two results"),
    pytest.param("def level(self):\n        a = 1\n        print(a)\n        return 2", None,
                 id="a method that does more"),
    pytest.param("def __init__(self): self.level = 1", None, id="what its instances have"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), BODIES)
def test_a_class_lists_the_plain_values_that_it_has_of_the_engines(
    body: str, expected: tuple[str, str] | None
) -> None:
    """Those of a base that is overridden are not among them."""
    engine = f"class Root:\n    {body}\n    own = 1\nclass Base(Root): ..."
    plugin = "from engine.core import Base\nclass A(Base):\n  own = 2"

    found = contacts(pair_of({"core": engine}, {"m": plugin}))

    [values] = [each.values for each in found if each.kind is ContactKind.CLASS]
    assert [*values] == ([] if expected is None else [expected])


def test_a_class_that_lost_a_base_lists_no_methods() -> None:
    """Whether the engine has what they override, nothing tells."""
    own = "from engine.core import Worker, Gone\nclass A(Worker, Gone):\n  def step(self): ..."

    found = contacts(pair_of(ENGINE, {"m": own}))

    assert [each.own for each in found if each.kind is ContactKind.CLASS] == [()]


def test_files_that_are_named_are_looked_at_alone() -> None:
    """The others are not."""
    pair = pair_of(ENGINE, {"m": "import engine", "other": "import engine.core"})

    found = contacts(pair, ["plugin/other.py"])

    assert [each.at for each in found] == ["plugin/other.py:1"]
