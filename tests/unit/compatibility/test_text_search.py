"""What the texts of an engine and of a plugin say of a name."""

from __future__ import annotations

import pytest

from backend_caps.compatibility.text_search import TextSearch
from tests.unit.compatibility.pairs import pair_of

FILES = {
    "a": """
        class Builder:
            async def build(self, x):
                return self.plan(x)

        def plan(x):  # def noted(
            return Builder(x), torch.plan(x)
        """,
    "b": """
        remote.call('build')
        Builder(other.build(1), lower(2))
        """,
}
PLUGIN = {"m": "def build(): ...\nx.plan(Builder(1))\ncall('plan')"}


def _texts() -> TextSearch:
    return pair_of(FILES, PLUGIN).texts


def test_functions_are_found_by_the_files_that_define_them() -> None:
    """Methods count, `async` ones too; the plugin's files and comments do not."""
    assert _texts().defining == {"build": ["engine/a.py"], "plan": ["engine/a.py"]}


def test_calls_are_found_by_the_files_that_have_them() -> None:
    """Calls of attributes count, each file once."""
    assert _texts().calling == {
        "plan": ["engine/a.py"],
        "call": ["engine/b.py"],
        "build": ["engine/b.py"],
    }


def test_constructions_are_found_by_the_files_that_have_them() -> None:
    """A class statement is none, and what a module or package has by the name is one."""
    text = {"a": "class Thing(Base): ...", "b": "a.Thing()", "c": "x: Thing", "d": "AThing()"}

    assert [*_texts().constructing("Builder")] == ["engine/a.py", "engine/b.py"]
    assert [*pair_of(text).texts.constructing("Thing")] == ["engine/b.py"]


def test_calls_of_a_bare_name_are_of_no_attribute() -> None:
    """Neither is the definition."""
    text = {"a": "def plan(): ...", "b": "a.plan()", "c": "x = plan()", "d": "my_plan()"}

    assert [*pair_of(text).texts.calling_bare("plan")] == ["engine/c.py"]


def test_files_of_the_engine_are_found_by_a_text() -> None:
    """The plugin's are left out; a word is no part of a longer one."""
    files = {"a": "import engine.core.plan", "b": "import engine.core, engine.coreplan"}

    assert [*_texts().engine_files("plan")] == ["engine/a.py"]
    assert [*pair_of(files).texts.engine_files("engine.core")] == ["engine/a.py", "engine/b.py"]
    assert [*pair_of(files).texts.engine_files("core.plan")] == ["engine/a.py"]
    assert [*pair_of(files).texts.engine_files("plan.engine")] == []


@pytest.mark.parametrize(("name", "expected"), [("build", True), ("call", False), ("plan", False)])
def test_a_name_is_quoted_where_the_engine_has_it_as_a_text(name: str, expected: bool) -> None:
    """Remote calls name a method by a text; what the plugin quotes is its own."""
    assert (name in _texts().quoted) is expected


READS = [
    pytest.param("y = x.size", True, id="read"),
    pytest.param("y = x.size == 1", True, id="compared"),
    pytest.param("y = a.x.size", True, id="read of a longer name"),
    pytest.param("y = z.size", False, id="read of another module"),
    pytest.param("getattr(x, 'size')", True, id="by a text"),
    pytest.param('getattr(x, "size")', True, id="by another text"),
    pytest.param("x.size = 1", False, id="assigned"),
    pytest.param("x.sizes", False, id="a longer name"),
    pytest.param("size", False, id="no attribute"),
    pytest.param("y = 1  # x.size", False, id="in a comment"),
]
ASSIGNMENTS = [
    pytest.param("x.size = 1", True, id="assigned"),
    pytest.param("x.size: int = 1", True, id="with a type"),
    pytest.param("setattr(x, 'size', 1)", True, id="by a text"),
    pytest.param("self.size = 1", False, id="by the object itself"),
    pytest.param("x.size == 1", False, id="compared"),
    pytest.param("x.sizes = 1", False, id="a longer name"),
    pytest.param("f(size=1)", False, id="an argument"),
]


@pytest.mark.parametrize(("text", "expected"), READS)
@pytest.mark.parametrize("is_engines", [True, False])
def test_an_attribute_is_read_by_either(text: str, expected: bool, is_engines: bool) -> None:
    """A text counts where it may be the name in a call of `getattr`."""
    files = {"m": f"z = 0\n{text}\n"}
    texts = (pair_of(files) if is_engines else pair_of({}, files)).texts

    assert texts.is_read("engine.x.size") is expected


def test_an_instance_has_any_name() -> None:
    """An attribute of a class may be read of whatever holds an instance."""
    texts = pair_of({"m": "y = anything.size"}).texts

    assert texts.is_read("X.size")
    assert not texts.is_read("x.size")


def test_calls_of_others_are_no_calls_of_the_object_itself() -> None:
    """`self`, `cls` and `super()` are the object itself."""
    text = "self.own(); cls.of_class(); super().of_base(); it.other(); f().made(); itself.x()"

    calling = pair_of({"m": text}).texts.calling_of_others

    assert calling == {name: ["engine/m.py"] for name in ("other", "made", "x")}


@pytest.mark.parametrize(("text", "expected"), ASSIGNMENTS)
def test_an_attribute_is_assigned_from_outside(text: str, expected: bool) -> None:
    """What an object assigns to itself is one of its members, and found there."""
    texts = pair_of({}, {"m": text}).texts

    assert ("size" in {*texts.assigning, *texts.set_by_text}) is expected
