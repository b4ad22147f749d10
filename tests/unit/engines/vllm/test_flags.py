from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from backend_caps.capability.backend import Reading
from backend_caps.capability.provenance import Origin
from tests.unit.engines.tables import table
from tests.unit.engines.vllm.building import class_of, read_one


@table("vllm_flags", "flag_is_read")
def test_flag_is_read(tmp_path: Path, body: str, name: str, value: object, words: str) -> None:
    """A flag that the root has and that is no capability is listed by the engine's name."""
    backend = read_one(tmp_path, body)

    assert class_of(backend).attributes == {
        name: Reading(origin=Origin.DECLARED, words=words, value=value, declared_at="vllm/one.py:5")
    }


def test_flag_that_depends_has_its_condition(tmp_path: Path) -> None:
    """A flag that only running code knows is listed in the source's words, without a value."""
    body = "def supports_sink(cls):\n    if old():\n        return False\n    return probe()"

    backend = read_one(tmp_path, body)

    flag = class_of(backend).attributes["supports_sink"]
    assert (flag.origin, flag.value) == (Origin.CONDITIONAL, None)
    assert flag.words == "supports_sink() returns False where old(); else probe()"


def test_conditions_are_said_once(tmp_path: Path) -> None:
    """What stood before and has failed is not said again, what holds for both is."""
    body = """
    def supports_sink(cls):
        if old():
            if patched():
                return True
            return False
        return probe()
    """

    backend = read_one(tmp_path, dedent(body))

    assert class_of(backend).attributes["supports_sink"].words == (
        "supports_sink() returns True where old() and patched(); else False where old(); "
        "else probe()"
    )


def test_inherited_flag_names_its_class(tmp_path: Path) -> None:
    """A flag that a parent states is listed as inherited."""
    parent = "class Parent(AttentionBackend):\n    def supports_sink(cls):\n        return True"

    backend = read_one(tmp_path, "pass", before=parent, base="Parent")

    flag = class_of(backend).attributes["supports_sink"]
    assert (flag.origin, flag.value, flag.inherited_from) == (Origin.INHERITED, True, "Parent")


def test_flags_of_the_builder_are_read(tmp_path: Path) -> None:
    """What the metadata builder states stands beside what the backend does."""
    before = """
        class Builder(AttentionMetadataBuilder):
            needs_width = True
            threshold: int | None = None
            unknown = 3
            first, second = 1, 2
            declared_only: int
    """

    backend = read_one(tmp_path, "def get_builder_cls():\n    return Builder", before=before)

    flags = {name: each.value for name, each in class_of(backend).attributes.items()}
    assert flags == {"get_builder_cls": "Builder", "needs_width": True, "threshold": None}
    assert class_of(backend).attributes["threshold"].origin is Origin.DECLARED
