from __future__ import annotations

from pathlib import Path

from tests.unit.engines.sglang.building import (
    ARGS,
    CLASSES,
    DRAFTS,
    DRAFTS_OF_ONE,
    HEAD,
    MORE,
    OF_A,
    OPTIONS,
    REGISTERED_ONE,
    REGISTRY,
    TWO,
    codes,
    parts_of,
    read,
    registry,
    targets,
)
from tests.unit.engines.tables import table

OF_B = OF_A.replace("A(", "B(")


@table("sglang_registrations", "every_registration_of_a_name_counts")
def test_every_registration_of_a_name_counts(
    tmp_path: Path, registrations: str, made: list[tuple[str, str]]
) -> None:
    """What is registered under conditions is made under them, and none is left out."""
    assert targets(tmp_path, registrations) == made


def test_files_that_register_one_name_all_count_and_are_reported(tmp_path: Path) -> None:
    """Which file is imported last is open, so each of them may be the one."""
    files = {TWO: CLASSES, REGISTRY: registry(REGISTERED_ONE + OF_A), MORE: OF_B}

    reading = read(tmp_path, files)

    places = (f"{REGISTRY}:13", f"{MORE}:2")
    made = {(made, given) for made, role, given in parts_of(reading, "two") if role == "target"}
    assert made == {
        ("A", f"{places[0]} is the one that counts"),
        ("B", f"{places[1]} is the one that counts"),
    }
    assert codes(reading) == ["engine-name-registered-twice"]
    assert reading.problems[0].message == (
        f"sglang registers the name 'two' in several files: {', '.join(places)}; which one counts "
        "depends on what is imported last."
    )


def test_looking_up_a_name_that_is_registered_twice_is_not_followed(tmp_path: Path) -> None:
    """Code that takes it from the table gets one of them, and nobody knows which."""
    looked_up = (
        "@register_attention_backend('three')\ndef again(runner):\n"
        "    return ATTENTION_BACKENDS['two'](runner)\n"
    )
    files = {TWO: CLASSES, REGISTRY: registry(OF_A + OF_B + looked_up)}

    made = {part for part, _, _ in parts_of(read(tmp_path, files), "three")}

    assert made == {"three, not followed"}


@table("sglang_registrations", "function_that_a_decorator_replaces_is_not_followed")
def test_function_that_a_decorator_replaces_is_not_followed(
    tmp_path: Path, decorators: str, made: str
) -> None:
    """What a decorator below the registration makes is registered, and not the function."""
    register, rest = OF_A.split("\n", 1)

    assert targets(tmp_path, decorators.format(f"{register}\n") + rest) == [(made, "always")]


@table("sglang_registrations", "name_that_nobody_can_type_is_reported_and_left_out")
def test_name_that_nobody_can_type_is_reported_and_left_out(
    tmp_path: Path, name: str, written: str
) -> None:
    """It is no name of a backend, wherever it is registered."""
    text = registry(REGISTERED_ONE + OF_A.replace("'two'", f"'{name}'"))
    draft = DRAFTS_OF_ONE.replace('{"one"', f"{{'{name}': self._one, 'one'")

    reading = read(tmp_path, {TWO: CLASSES, REGISTRY: text, DRAFTS: draft})

    assert set(codes(reading)) == {"engine-name-unusable"}
    assert [each.message.partition(" (")[0] for each in reading.problems] == [
        f"sglang registers the name {written}"
    ] * len(reading.problems)
    assert [*reading.registry] == ["A", "B", "One", "OneSteps", "one"]


def test_alias_that_nobody_can_type_is_left_out(tmp_path: Path) -> None:
    """An old name with control characters has no record."""
    aliases = (
        "\ndef replace_deprecated(args):\n"
        '    for slot in ("attention_backend", "speculative_draft_attention_backend"):\n'
        '        aliases = {"o\\x1bne": "one", "old": "one"}\n'
    )

    reading = read(tmp_path, {ARGS: OPTIONS + aliases})

    assert codes(reading) == ["engine-name-unusable"]
    assert [*reading.registry] == ["One", "OneSteps", "old", "one"]


def test_name_that_reads_like_a_label_of_ours_is_no_label(tmp_path: Path) -> None:
    """A registered name is itself; what was not followed and what is a class is called more."""
    lost = HEAD + "    return elsewhere.Made(runner)\n"
    text = registry(
        REGISTERED_ONE
        + lost
        + OF_A.replace("'two'", "'two, not followed'")
        + OF_A.replace("'two'", "'A'")
    )

    reading = read(tmp_path, {TWO: CLASSES, REGISTRY: text})

    assert [*reading.registry] == [
        "A",
        "B",
        "One",
        "OneSteps",
        "one",
        "two",
        "two, not followed",
        "two, not followed here",
        "two.A",
    ]


def test_names_of_two_maps_of_the_draft_all_count(tmp_path: Path) -> None:
    """A map under a condition does not hide the other one."""
    text = DRAFTS_OF_ONE.replace(
        "        makers =",
        "        if is_npu():\n            makers = {'one': self._one}\n        makers =",
        1,
    )

    reading = read(tmp_path, {DRAFTS: text})

    steps = [made for made, role, _ in parts_of(reading, "one") if role == "draft"]
    assert steps == ["One", "One", "OneSteps"]
