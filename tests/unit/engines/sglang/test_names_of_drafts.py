from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.engines.sglang.building import (
    CLASSES,
    DRAFTS,
    DRAFTS_OF_ONE,
    OF_A,
    REGISTERED_ONE,
    REGISTRY,
    TWO,
    codes,
    drafts,
    parts_of,
    read,
    registry,
)
from tests.unit.engines.tables import table


def _drafts(folder: Path, entry: str, methods: str) -> tuple[list[tuple[str, str]], list[str]]:
    """List what a name drafts with, and the problems."""
    files = {
        TWO: CLASSES,
        REGISTRY: registry(REGISTERED_ONE + OF_A),
        DRAFTS: drafts(f'"two": {entry}, **others', "", methods),
    }
    reading = read(folder, files)
    declaration = reading.registry["two"].declaration
    assert declaration is not None
    steps = [part for part in declaration.parts if {p.value for p in part.phases} == {"decode"}]
    return [(part.backend, str(part.given or "always")) for part in steps], codes(reading)


def test_other_keys_of_a_map_are_no_names(tmp_path: Path) -> None:
    """A key that is computed, or no text, registers nothing."""
    text = DRAFTS_OF_ONE.replace('{"one": self._one_steps', "{NAME: self._one, 3: self._one")

    reading = read(tmp_path, {DRAFTS: text})

    assert [*reading.registry] == ["One", "OneSteps", "one"]


@table("sglang_names_of_drafts", "draft_is_what_the_factory_makes_or_the_runners_own")
def test_draft_is_what_the_factory_makes_or_the_runners_own(
    tmp_path: Path, entry: str, methods: str, made: list[tuple[str, str]]
) -> None:
    """Where the factory makes none for the draft, the draft's runner keeps its own."""
    assert _drafts(tmp_path, entry, methods) == (made, [])


@table("sglang_names_of_drafts", "draft_that_cannot_be_followed_is_undeclared_and_told")
def test_draft_that_cannot_be_followed_is_undeclared_and_told(
    tmp_path: Path, entry: str, methods: str
) -> None:
    """It is never taken for the target's class."""
    made, told = _drafts(tmp_path, entry, methods)

    assert made == [("two, not followed", "always")]
    assert told == ["engine-name-not-followed"]


def test_draft_method_that_is_followed_in_part_is_told(tmp_path: Path) -> None:
    """What is lost in a method that another one calls is lost under its conditions."""
    methods = (
        "def _two(self):\n    return self._real()\n"
        "def _real(self):\n    if is_npu():\n        from sglang.srt.gone import Gone as Made\n"
        "    else:\n        from sglang.srt.layers.attention.two import B as Made\n"
        "    return ('two', Made(self.runner))\n"
    )

    made, _ = _drafts(tmp_path, "self._two", methods)

    assert made == [
        ("B", "device in cpu, cuda, hpu, mps, musa, xpu"),
        ("two, not followed", "device = npu"),
    ]


def test_name_of_a_profile_alone_is_the_drafts_own(tmp_path: Path) -> None:
    """A branch on a profile of the draft's belongs to the name that the profile has."""
    text = DRAFTS_OF_ONE.replace(
        "        makers =",
        "        if self.topk == 0:\n            return None\n"
        "        if self.two_profile is not None:\n            return self._one_steps()\n"
        "        if self.topk is not None:\n            return self._one_steps()\n"
        "        if self.topk > 1:\n            return self._one_steps()\n"
        "        makers =",
        1,
    )

    reading = read(tmp_path, {DRAFTS: text})

    assert parts_of(reading, "two") == [("OneSteps", "draft", "always")]


@pytest.mark.parametrize(
    "text", [pytest.param("", id="no class"), pytest.param("class (", id="no Python")]
)
def test_missing_factory_of_the_draft_is_a_problem(tmp_path: Path, text: str) -> None:
    """Without it, no name is known to draft, and that is told."""
    reading = read(tmp_path, {DRAFTS: text})

    messages = [each.message for each in reading.problems if each.code == "engine-anchor-missing"]
    assert messages == [
        f"sglang 0.5.13 has no class DraftBackendFactory in {DRAFTS}, where known versions have it."
    ]
    assert {role for _, role, _ in parts_of(reading, "one")} == {"target", "draft"}
