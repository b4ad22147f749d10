from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from backend_caps import BatchKind, Origin
from backend_caps.capability.backend import Backend, Reading
from backend_caps.resolution.launch import LEVELS
from tests.unit.engines.tables import table
from tests.unit.engines.vllm.building import class_of, declared, files_of, read, said

BACKEND = """
class One(AttentionBackend):
    def get_builder_cls():
        return Builder
"""
ALWAYS = LEVELS["ALWAYS"]


def _read(folder: Path, builders: str, backend: str = BACKEND) -> Backend:
    text = f"{builders}\n{backend}"
    return read(folder, files_of({"one": text})).registry["One"]


def _conditions(backend: Backend) -> Mapping[str, object]:
    return {
        str(when.given): when.capabilities.graph_replay for when in declared(backend).conditions
    }


@pytest.mark.parametrize(
    ("level", "batches"),
    [
        pytest.param("NEVER", set(), id="never"),
        pytest.param("UNIFORM_SINGLE_TOKEN_DECODE", {BatchKind.SINGLE_TOKEN_DECODE}, id="single"),
        pytest.param(
            "UNIFORM_BATCH", {BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH}, id="uniform"
        ),
        pytest.param("ALWAYS", set(BatchKind), id="always"),
    ],
)
def test_level_is_a_set_of_batches(tmp_path: Path, level: str, batches: set[BatchKind]) -> None:
    """What the builder itself states is declared: each level replays what a lower one does."""
    builder = f"""
class Builder(AttentionMetadataBuilder):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.{level}
"""

    backend = _read(tmp_path, builder)

    assert declared(backend).capabilities.graph_replay == batches
    assert said(backend, "graph_replay") == Reading(
        origin=Origin.DECLARED,
        words=f"Builder: _cudagraph_support = AttentionCGSupport.{level}",
        value=batches,
        declared_at="vllm/one.py:5",
    )


@table("vllm_graphs", "level_is_what_stands_once_the_module_has_run")
def test_level_is_what_stands_once_the_module_has_run(
    tmp_path: Path, builder: str, batches: str
) -> None:
    """The last statement that runs counts, also where it stands outside the class."""
    backend = _read(tmp_path, "class Builder(AttentionMetadataBuilder):\n" + builder)

    assert declared(backend).capabilities.graph_replay == LEVELS[batches]
    assert declared(backend).conditions == ()


def test_level_that_may_be_set_after_the_class_is_conditional(tmp_path: Path) -> None:
    """What a condition sets outside the class is one of its values."""
    builder = """
class Builder(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.ALWAYS

if HOT:
    Builder._cudagraph_support = AttentionCGSupport.NEVER
"""

    assert said(_read(tmp_path, builder), "graph_replay").origin is Origin.CONDITIONAL


def test_inherited_level_is_undeclared(tmp_path: Path) -> None:
    """What a builder has from its parent and does not state again is shown, not declared."""
    builders = """
class Parent(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.ALWAYS

class Builder(Parent):
    pass
"""

    backend = _read(tmp_path, builders)

    reading = said(backend, "graph_replay")
    assert (reading.origin, reading.value) == (Origin.INHERITED, ALWAYS)
    assert (reading.inherited_from, reading.declared_at) == ("Parent", "vllm/one.py:5")
    assert declared(backend).capabilities.stated() == {}


def test_root_level_is_undeclared(tmp_path: Path) -> None:
    """A builder that states nothing, as its parents do, has the root's default in its words."""
    backend = _read(tmp_path, "class Builder(AttentionMetadataBuilder):\n    pass\n")

    root = "_cudagraph_support = AttentionCGSupport.NEVER"
    assert said(backend, "graph_replay") == Reading(
        origin=Origin.UNDECLARED, words=f"Builder: states nothing; the root: {root}"
    )


def test_builder_of_no_family_states_nothing(tmp_path: Path) -> None:
    """A builder that is not below the root, and states nothing, is undeclared."""
    backend = _read(tmp_path, "class Builder:\n    pass\n")

    assert said(backend, "graph_replay").words == "Builder: states nothing"


def test_backend_without_builder_is_silent(tmp_path: Path) -> None:
    """Where no class of the family names a builder, there are no words."""
    backend = _read(tmp_path, "", "class One(AttentionBackend):\n    pass\n")

    assert "graph_replay" not in class_of(backend).readings


STATES = "    _cudagraph_support = AttentionCGSupport.{}\n"
CHOOSING = """
class One(AttentionBackend):
    def get_builder_cls():
        if is_rocm():
            return First
        return {}
"""


def _builder(body: str, name: str = "Builder", base: str = "AttentionMetadataBuilder") -> str:
    return f"class {name}({base}):\n{body}\n"


def _choice(first: str, second: str) -> str:
    """Write two builders that state a level each, and a third that states none."""
    stating = _builder(STATES.format(first), "First") + _builder(STATES.format(second), "Second")
    return stating + _builder("    pass\n", "Third", "Second")


@table("vllm_graphs", "level_that_depends_is_declared_with_its_conditions")
def test_level_that_depends_is_declared_with_its_conditions(
    tmp_path: Path, builders: str, backend: str, base: str, conditions: Mapping[str, str]
) -> None:
    """Each case has its own tests and the failure of those before it; the last is the base."""
    read = _read(tmp_path, builders, backend)

    assert declared(read).capabilities.graph_replay == LEVELS[base]
    assert _conditions(read) == {when: LEVELS[level] for when, level in conditions.items()}
    origin = Origin.CONDITIONAL if conditions else Origin.DECLARED
    assert said(read, "graph_replay").origin is origin


def test_reason_of_a_condition_has_every_level(tmp_path: Path) -> None:
    """The words name the builder, and what it may state; of several, each."""
    level = STATES.format("ALWAYS if a else AttentionCGSupport.UNIFORM_BATCH")
    one = _read(tmp_path / "one", _builder(level))
    two = _read(tmp_path / "two", _choice("NEVER", "ALWAYS"), CHOOSING.format("Second"))

    assert declared(one).conditions[0].reason == (
        "Builder: _cudagraph_support = "
        "AttentionCGSupport.ALWAYS or AttentionCGSupport.UNIFORM_BATCH"
    )
    assert said(two, "graph_replay").words == (
        "First: _cudagraph_support = AttentionCGSupport.NEVER; "
        "Second: _cudagraph_support = AttentionCGSupport.ALWAYS"
    )


@table("vllm_graphs", "level_that_cannot_be_read_is_undeclared")
def test_level_that_cannot_be_read_is_undeclared(tmp_path: Path, body: str, words: str) -> None:
    """What only running code knows is undeclared as a whole; the words say what decides."""
    builder = f"""
class Builder(AttentionMetadataBuilder):
    def get_cudagraph_support(cls, config, spec):
        {body}
"""

    backend = _read(tmp_path, builder)

    reading = said(backend, "graph_replay")
    assert (reading.origin, reading.value) == (Origin.CONDITIONAL, None)
    assert reading.words == f"Builder: get_cudagraph_support() returns {words}"
    assert declared(backend).capabilities.stated() == {}


@table("vllm_graphs", "level_that_one_class_does_not_state_is_undeclared")
def test_level_that_one_class_does_not_state_is_undeclared(
    tmp_path: Path, builders: str, backend: str
) -> None:
    """Where one class of those that decide states nothing of its own, nothing is declared."""
    read = _read(tmp_path, builders, backend)

    assert said(read, "graph_replay").origin is Origin.CONDITIONAL
    assert declared(read).capabilities.stated() == {}


@table("vllm_graphs", "unknown_builder_is_undeclared")
def test_unknown_builder_is_undeclared(tmp_path: Path, other: str, words: str) -> None:
    """A builder that only running code knows leaves the graphs undeclared."""
    helper = "def helper():\n    pass\n"

    backend = _read(tmp_path, _choice("NEVER", "NEVER") + helper, CHOOSING.format(other))

    assert said(backend, "graph_replay").words == f"get_builder_cls() returns {words}"
    assert declared(backend).capabilities.stated() == {}
    assert class_of(backend).attributes["get_builder_cls"].origin is Origin.CONDITIONAL


def test_builder_that_nothing_returns_is_undeclared(tmp_path: Path) -> None:
    """A method that returns no builder leaves the graphs undeclared."""
    backend = _read(tmp_path, "", BACKEND.replace("return Builder", "raise NotImplementedError"))

    assert said(backend, "graph_replay").words == "get_builder_cls() returns nothing"
