from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from backend_caps.capability.backend import Backend, Reading
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.engines.vllm.capabilities import LEVELS
from tests.unit.engines.vllm.building import class_of, declared, files_of, read, said

BACKEND = """
class One(AttentionBackend):
    def get_builder_cls():
        return Builder
"""
NEVER, SINGLE, UNIFORM, ALWAYS = LEVELS.values()


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


@pytest.mark.parametrize(
    ("builder", "batches"),
    [
        pytest.param(
            "    _cudagraph_support = AttentionCGSupport.NEVER\n"
            "Builder._cudagraph_support = AttentionCGSupport.ALWAYS\nOTHERS[0] = None\n",
            ALWAYS,
            id="set after the class",
        ),
        pytest.param(
            "    if True:\n        _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH\n",
            UNIFORM,
            id="under a constant",
        ),
        pytest.param(
            "    _cudagraph_support = AttentionCGSupport.ALWAYS\n"
            "    if False:\n        _cudagraph_support = AttentionCGSupport.NEVER\n",
            ALWAYS,
            id="where nothing runs",
        ),
    ],
)
def test_level_is_what_stands_once_the_module_has_run(
    tmp_path: Path, builder: str, batches: set[BatchKind]
) -> None:
    """The last statement that runs counts, also where it stands outside the class."""
    backend = _read(tmp_path, "class Builder(AttentionMetadataBuilder):\n" + builder)

    assert declared(backend).capabilities.graph_replay == batches
    assert declared(backend).conditions == ()


def test_level_that_may_be_set_after_the_class_is_conditional(tmp_path: Path) -> None:
    """What a condition sets outside the class is one of its values."""
    builder = """
class Builder(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.ALWAYS

if HOT:
    Builder._cudagraph_support = AttentionCGSupport.NEVER
"""

    backend = _read(tmp_path, builder)

    assert said(backend, "graph_replay").origin is Origin.CONDITIONAL


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


def test_conditional_level_is_declared_with_its_condition(tmp_path: Path) -> None:
    """The branches of a conditional expression: the last is the base, the others conditions."""
    builder = """
class Builder(AttentionMetadataBuilder):
    _cudagraph_support = (
        AttentionCGSupport.ALWAYS if version() in (3, 4) else AttentionCGSupport.UNIFORM_BATCH
    )

    def get_cudagraph_support(cls, config, spec):
        return cls._cudagraph_support
"""

    backend = _read(tmp_path, builder)

    assert declared(backend).capabilities.graph_replay == UNIFORM
    assert _conditions(backend) == {"version() in (3, 4)": ALWAYS}
    assert said(backend, "graph_replay").origin is Origin.CONDITIONAL
    assert declared(backend).conditions[0].reason == (
        "Builder: _cudagraph_support = "
        "AttentionCGSupport.ALWAYS or AttentionCGSupport.UNIFORM_BATCH"
    )


def test_method_with_branches_is_declared_with_its_conditions(tmp_path: Path) -> None:
    """Each return is a case, under its own tests and the failure of those before it."""
    builder = """
class Builder(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.NEVER

    def get_cudagraph_support(cls, config, spec):
        if config.parallel > 1:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        if config.fast:
            return AttentionCGSupport.ALWAYS
        return cls._cudagraph_support
"""

    backend = _read(tmp_path, builder)

    assert declared(backend).capabilities.graph_replay == NEVER
    assert _conditions(backend) == {
        "config.parallel > 1": SINGLE,
        "not config.parallel > 1 and config.fast": ALWAYS,
    }
    assert said(backend, "graph_replay").declared_at == "vllm/one.py:7"


def test_super_is_followed(tmp_path: Path) -> None:
    """What `super()` returns is what the parent's method, or attribute, says."""
    builders = """
class Parent(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

class Builder(Parent):
    def get_cudagraph_support(cls, config, spec):
        if config.adaptive:
            return AttentionCGSupport.ALWAYS
        return super().get_cudagraph_support(config, spec)
"""

    backend = _read(tmp_path, builders)

    assert declared(backend).capabilities.graph_replay == UNIFORM
    assert _conditions(backend) == {"config.adaptive": ALWAYS}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param("return min(levels)", "min(levels)", id="a call"),
        pytest.param(
            "return AttentionCGSupport.SOMETIMES", "AttentionCGSupport.SOMETIMES", id="a new level"
        ),
        pytest.param("return Other.ALWAYS", "Other.ALWAYS", id="another scale"),
        pytest.param("return", "nothing", id="nothing"),
        pytest.param(
            "return super().other_support(config)", "super().other_support(config)", id="other"
        ),
        pytest.param(
            "if a:\n            return AttentionCGSupport.NEVER\n        return decide()",
            "AttentionCGSupport.NEVER where a; else decide()",
            id="one branch",
        ),
    ],
)
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


def test_super_of_nobody_is_undeclared(tmp_path: Path) -> None:
    """Where no class of the source has the method that `super()` asks for, nothing is read."""
    builder = """
class Builder(Elsewhere):
    def get_cudagraph_support(cls, config, spec):
        return super().get_cudagraph_support(config, spec)
"""

    backend = _read(tmp_path, builder)

    assert declared(backend).capabilities.stated() == {}


def test_super_of_what_cannot_be_read_is_undeclared(tmp_path: Path) -> None:
    """Where the parent's method cannot be read, neither can the one that calls it."""
    builders = """
class Parent(AttentionMetadataBuilder):
    def get_cudagraph_support(cls, config, spec):
        return decide(config)

class Builder(Parent):
    def get_cudagraph_support(cls, config, spec):
        return super().get_cudagraph_support(config, spec)
"""

    backend = _read(tmp_path, builders)

    assert declared(backend).capabilities.stated() == {}


CHOICE = """
class First(AttentionMetadataBuilder):
    _cudagraph_support = AttentionCGSupport.{first}

class Second({base}):
    _cudagraph_support = AttentionCGSupport.{second}

class Third(Second):
    pass
"""
CHOOSING = """
class One(AttentionBackend):
    def get_builder_cls():
        if is_rocm():
            return First
        return {other}
"""


def _read_choice(folder: Path, first: str, second: str, other: str = "Second") -> Backend:
    builders = CHOICE.format(first=first, second=second, base="AttentionMetadataBuilder")
    return _read(folder, builders, CHOOSING.format(other=other))


def test_builders_by_condition_are_cases(tmp_path: Path) -> None:
    """Where a condition chooses the builder, it also chooses what is declared."""
    backend = _read_choice(tmp_path, "NEVER", "ALWAYS")

    assert declared(backend).capabilities.graph_replay == ALWAYS
    assert _conditions(backend) == {"is_rocm()": NEVER}
    assert said(backend, "graph_replay").words == (
        "First: _cudagraph_support = AttentionCGSupport.NEVER; "
        "Second: _cudagraph_support = AttentionCGSupport.ALWAYS"
    )


def test_builders_that_agree_are_one(tmp_path: Path) -> None:
    """Where all builders state the same, the condition does not matter."""
    backend = _read_choice(tmp_path, "ALWAYS", "ALWAYS")

    assert said(backend, "graph_replay").origin is Origin.DECLARED
    assert declared(backend).capabilities.graph_replay == ALWAYS
    assert declared(backend).conditions == ()


def test_builders_of_which_one_inherits_are_undeclared(tmp_path: Path) -> None:
    """Where one of the builders does not state its own, nothing is declared."""
    backend = _read_choice(tmp_path, "ALWAYS", "ALWAYS", other="Third")

    assert said(backend, "graph_replay").origin is Origin.CONDITIONAL
    assert declared(backend).capabilities.stated() == {}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        pytest.param("pick()", "First where is_rocm(); else pick()", id="a call"),
        pytest.param("helper", "First where is_rocm(); else helper", id="a function"),
    ],
)
def test_unknown_builder_is_undeclared(tmp_path: Path, other: str, words: str) -> None:
    """A builder that only running code knows leaves the graphs undeclared."""
    builders = CHOICE.format(first="NEVER", second="NEVER", base="AttentionMetadataBuilder")
    helper = "def helper():\n    pass\n"

    backend = _read(tmp_path, builders + helper, CHOOSING.format(other=other))

    assert said(backend, "graph_replay").words == f"get_builder_cls() returns {words}"
    assert declared(backend).capabilities.stated() == {}
    assert class_of(backend).attributes["get_builder_cls"].origin is Origin.CONDITIONAL


def test_builder_that_nothing_returns_is_undeclared(tmp_path: Path) -> None:
    """A method that returns no builder leaves the graphs undeclared."""
    backend = _read(tmp_path, "", BACKEND.replace("return Builder", "raise NotImplementedError"))

    assert said(backend, "graph_replay").words == "get_builder_cls() returns nothing"
