from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.engines.sglang.building import (
    A_AND_B,
    BASE,
    CLASSES,
    DRAFTS,
    DRAFTS_OF_ONE,
    MAKE,
    MORE,
    OF_A,
    REGISTERED_ONE,
    REGISTRY,
    ROOT,
    TWO,
    class_of,
    codes,
    drafts,
    parts_of,
    read,
    registry,
    targets,
)
from tests.unit.engines.tables import table


def test_small_engine_reads_without_a_problem(tmp_path: Path) -> None:
    """The engine that these tests change has everything where it belongs."""
    reading = read(tmp_path)

    assert reading.problems == ()
    assert [*reading.registry] == ["One", "OneSteps", "one"]
    assert parts_of(reading, "one") == [
        ("One", "target", "always"),
        ("One", "draft", "always"),
        ("OneSteps", "draft", "always"),
        ("One", "draft_extend", "always"),
    ]


@table("sglang_names", "registered_name_leads_to_the_classes_that_it_makes")
def test_registered_name_leads_to_the_classes_that_it_makes(
    tmp_path: Path, registrations: str, made: list[tuple[str, str]]
) -> None:
    """A factory is followed to its classes, each under the conditions on the way."""
    name = "three" if "'three'" in registrations else "two"

    assert targets(tmp_path, registrations, name) == made


def test_names_are_sorted(tmp_path: Path) -> None:
    """The names come in their own order, whatever the file's is."""
    registrations = "".join(
        MAKE.replace("two'", f"{name}'") + "    return A(runner)\n" for name in ("b", "a")
    )

    reading = read(tmp_path, {TWO: CLASSES, REGISTRY: registry(registrations)})

    names = [each.name for each in reading.backends if each.engine_class is None]
    assert names == ["a", "b", "one"]


@table("sglang_names", "registration_that_cannot_be_followed_is_undeclared_and_reported")
def test_registration_that_cannot_be_followed_is_undeclared_and_reported(
    tmp_path: Path, body: str, condition: str, made: list[tuple[str, str]]
) -> None:
    """What is made and has no class here counts, under the conditions on the way."""
    files = {TWO: CLASSES, REGISTRY: registry(REGISTERED_ONE + MAKE + body)}

    reading = read(tmp_path, files)

    parts = parts_of(reading, "two")
    assert [(part, given) for part, role, given in parts if role == "target"] == made
    assert [each.message for each in reading.problems] == [
        (
            f"what sglang makes for the name 'two'{condition} ({REGISTRY}:13) "
            "could not be followed to a class."
        )
    ]


def test_what_is_not_followed_has_a_record(tmp_path: Path) -> None:
    """It stands in the report as undeclared, with the place of its factory."""
    made = MAKE + "    return elsewhere.Made(runner)\n"

    found = class_of(
        read(tmp_path, {REGISTRY: registry(REGISTERED_ONE + made)}), "two, not followed"
    )

    assert found.declaration.capabilities.stated() == {}
    assert found.engine_class.registered_as == ("two",)
    assert found.needs.words == "what make() makes could not be followed to a class"
    assert str(found.backend.source) == f"sglang 0.5.13, {REGISTRY}:13"


def test_factory_that_never_ends_is_lost(tmp_path: Path) -> None:
    """Past a number of functions, what one makes counts as not followed."""
    steps = "".join(
        f"def step{n}(runner):\n{A_AND_B}    if is_npu():\n        return A(runner)\n"
        f"    return step{n + 1}(runner) if runner.x{n} else step{n + 1}(runner)\n"
        for n in range(8)
    )
    last = f"def step8(runner):\n{A_AND_B}    return B(runner)\n"

    made = targets(tmp_path, steps + last + MAKE + "    return step0(runner)\n")

    assert any(part == "two, not followed" for part, _ in made)


HELPED = """
def helper(runner):
    if is_npu():
        from sglang.srt.gone import Gone as Made
    else:
        from sglang.srt.layers.attention.two import A as Made
    return Made(runner)
"""


def test_helper_that_is_followed_in_part_is_reported(tmp_path: Path) -> None:
    """What is lost in a function that the factory calls is lost under its conditions."""
    registrations = (
        HELPED + MAKE + "    if is_hip():\n        return B(runner)\n    return helper(runner)\n"
    )

    made = targets(tmp_path, registrations)

    assert made == [
        ("B", "rocm on"),
        ("A", "device in cpu, cuda, hpu, mps, musa, xpu and rocm off"),
        ("two, not followed", "device = npu and rocm off"),
    ]


def test_registrations_of_a_file_that_is_no_python_are_left_out(tmp_path: Path) -> None:
    """A file that cannot be parsed registers nothing, and is reported."""
    broken = {MORE: "@register_attention_backend('two'\n"}

    reading = read(tmp_path, broken)

    assert codes(reading) == ["engine-file-not-parsed"]
    assert [*reading.registry] == ["One", "OneSteps", "one"]


@table("sglang_names", "what_goes_by_another_name_is_reported")
def test_what_goes_by_another_name_is_reported(
    tmp_path: Path, file: str, old: str, what: str
) -> None:
    """What every known version has is missed by its name, and never passed over."""
    files = {REGISTRY: registry(REGISTERED_ONE), DRAFTS: DRAFTS_OF_ONE, BASE: ROOT}

    reading = read(tmp_path, {file: files[file].replace(old, "quite_another")})

    messages = [each.message for each in reading.problems if each.code == "engine-anchor-missing"]
    assert messages == [f"sglang 0.5.13 has no {what} in {file}, where known versions have it."]


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

    assert [*read(tmp_path, {DRAFTS: text}).registry] == ["One", "OneSteps", "one"]


@table("sglang_names_of_drafts", "draft_is_what_the_factory_makes_or_the_runners_own")
def test_draft_is_what_the_factory_makes_or_the_runners_own(
    tmp_path: Path, entry: str, methods: str, made: list[tuple[str, str]]
) -> None:
    """Where the factory makes none for the draft, the draft's runner keeps its own."""
    assert _drafts(tmp_path, entry, methods) == (made, [])


@table("sglang_names_of_drafts", "draft_that_cannot_be_followed_is_undeclared_and_reported")
def test_draft_that_cannot_be_followed_is_undeclared_and_reported(
    tmp_path: Path, entry: str, methods: str
) -> None:
    """It is never taken for the target's class."""
    made, told = _drafts(tmp_path, entry, methods)

    assert made == [("two, not followed", "always")]
    assert told == ["engine-name-not-followed"]


def test_draft_method_that_is_followed_in_part_is_reported(tmp_path: Path) -> None:
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
    """Without it, no name is known to draft, and that is reported."""
    reading = read(tmp_path, {DRAFTS: text})

    messages = [each.message for each in reading.problems if each.code == "engine-anchor-missing"]
    assert messages == [
        f"sglang 0.5.13 has no class DraftBackendFactory in {DRAFTS}, where known versions have it."
    ]
    assert {role for _, role, _ in parts_of(reading, "one")} == {"target", "draft"}
