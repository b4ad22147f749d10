"""What the reader finds in SGLang's wheels, against tables that were written by reading them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import pytest
from _pytest.mark import ParameterSet

from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.kind import Phase, Role
from backend_caps.engines.read import read_engine
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.sglang.command_line import read_command_line
from backend_caps.resolution.engine import ENGINES
from backend_caps.resolution.uses import PAIR
from tests.upstream.sglang_wheel import find_wheel
from tests.upstream.tables.rows import Class, Needs, same_condition, sglang_table

pytestmark = pytest.mark.upstream

_TABLES = {version: sglang_table(version) for version in ("0.5.13", "0.5.23")}


@cache
def _reading(version: str) -> EngineReading:
    return read_engine("sglang", find_wheel(version))


@cache
def _classes(version: str) -> dict[str, Backend]:
    """The records of classes, by the place of their class statement."""
    found = [backend for backend in _reading(version).backends if backend.engine_class]
    return {str(backend.source.declared_at): backend for backend in found}


def _rows(wanted: Callable[[Class], bool] = lambda _: True) -> list[ParameterSet]:
    return [
        pytest.param(version, row, id=f"{version} {row.name} {row.at.rpartition(':')[2]}")
        for version, table in _TABLES.items()
        for row in table.classes
        if wanted(row)
    ]


def _read(version: str, row: Class) -> Backend:
    return _classes(version)[row.at]


def _class(version: str, row: Class) -> EngineClass:
    engine_class = _read(version, row).engine_class
    assert engine_class is not None, row.name
    return engine_class


@pytest.mark.parametrize("version", _TABLES)
def test_reading_has_every_class_and_no_other(version: str) -> None:
    """The classes that are read are those that a reader of the source finds."""
    rows = {row.at: row.name for row in _TABLES[version].classes}

    assert {at: _last_word(backend) for at, backend in _classes(version).items()} == rows


def _last_word(backend: Backend) -> str:
    assert backend.engine_class is not None, backend.name
    return backend.engine_class.path.rpartition(".")[2]


@pytest.mark.parametrize(("version", "row"), _rows())
def test_needs_are_as_the_source_has_them(version: str, row: Class) -> None:
    """Value, origin, place and base of `needs_cpu_seq_lens` are the source's."""
    reading = _class(version, row).readings.get("host_seq_lens")

    assert _of_reading(reading) == _of_row(row.needs)


def _of_reading(reading: Reading | None) -> tuple[object, ...]:
    if reading is None or reading.origin.value == "undeclared":
        return ("undeclared", None, None, None)
    value = {"exact": True, "none": False}.get(str(reading.value))
    return (reading.origin.value, value, reading.declared_at, reading.inherited_from)


def _of_row(needs: Needs) -> tuple[object, ...]:
    if needs.said == "undeclared":
        return ("undeclared", None, None, None)
    return (needs.said, needs.value, needs.at, needs.base)


@pytest.mark.parametrize(("version", "row"), _rows(lambda row: row.needs.said == "conditional"))
def test_conditions_are_in_the_words_of_the_source(version: str, row: Class) -> None:
    """Each value that depends on something comes with the expression that decides."""
    backend = _read(version, row)

    assert backend.declaration is not None
    whens = [
        w for w in backend.declaration.conditions if "host_seq_lens" in w.capabilities.stated()
    ]
    told = [w.reason.removeprefix("needs_cpu_seq_lens is ").split(" where ", 1) for w in whens]
    assert [value for value, _ in told] == [str(value) for value, _ in row.needs.cases]
    assert all(
        same_condition(read, written)
        for (_, read), (_, written) in zip(told, row.needs.cases, strict=True)
    )


@pytest.mark.parametrize(("version", "row"), _rows())
def test_longest_context_is_known_where_the_source_sets_it(version: str, row: Class) -> None:
    """`max_context_len` is known, maybe, or not at all, as constructing the class has it."""
    engine_class = _class(version, row)

    said = {"declared": "yes", "conditional": "maybe", "undeclared": "no"}
    origin = engine_class.readings["max_context_len_known"].origin.value
    assert said[origin] == row.max_context_len


@pytest.mark.parametrize(("version", "row"), _rows())
def test_names_lead_to_the_classes_that_the_source_makes(version: str, row: Class) -> None:
    """A class is made for the names and places for which the source makes it."""
    label = _read(version, row).name

    made = {
        place: sorted(n.name for n in _names(version) if _makes(n, label, role, phase))
        for place, role, phase in (
            ("registered_as", Role.TARGET, Phase.DECODE),
            ("draft_decode_of", Role.DRAFT, Phase.DECODE),
            ("draft_extend_of", Role.DRAFT_EXTEND, Phase.VERIFY),
        )
    }

    assert made == {place: sorted(getattr(row, place)) for place in made}


def _names(version: str) -> list[Backend]:
    table = _TABLES[version]
    aliases = (table.choices - table.registered) | {PAIR}
    backends = _reading(version).backends
    return [b for b in backends if b.engine_class is None and b.name not in aliases]


def _makes(name: Backend, label: str, role: Role, phase: Phase) -> bool:
    assert name.declaration is not None, name.name
    return any(p.backend == label and p.takes(role, phase) for p in name.declaration.parts)


@pytest.mark.parametrize(("version", "row"), _rows(lambda row: bool(row.shared_reads_end)))
def test_ends_of_shared_reads_are_those_of_the_method(version: str, row: Class) -> None:
    """By phase, `shared_read_ends` answers what the source's method does."""
    words = _class(version, row).readings["shared_reads_end"].words
    told = dict(part.split(": ", 1) for part in words.split("; "))
    levels = {"pre_replay", "in_replay", "post_replay", "unknown"}
    read = {phase: said if said in levels else "depends" for phase, said in told.items()}
    assert read == row.shared_reads_end


@pytest.mark.parametrize(("version", "row"), _rows())
def test_flags_of_the_class_body_are_read(version: str, row: Class) -> None:
    """SGLang's own flags have the values that the class's body gives them."""
    engine_class = _class(version, row)

    own = {
        name: reading.value
        for name, reading in engine_class.attributes.items()
        if reading.origin.value == "declared"
    }
    assert {name: own.get(name) for name in row.flags} == row.flags


@pytest.mark.parametrize("version", _TABLES)
def test_rules_of_the_version_are_found(version: str) -> None:
    """The rules that the function states are found, and matched to the built-in ones."""
    rules = _reading(version).rules

    assert rules is not None
    ours = {"piecewise-cuda-graph-enforced", "mixed-chunk-with-speculation"}
    found = {rule.name for rule in rules.rules} - ours
    assert found == set(_TABLES[version].rules)


@pytest.mark.parametrize("version", _TABLES)
def test_choices_and_registrations_are_the_sources(version: str) -> None:
    """What `--attention-backend` takes, and what is registered, is read whole."""
    reading, table = _reading(version), _TABLES[version]
    names = {b.name for b in reading.backends if b.engine_class is None}

    assert reading.command_line is not None
    assert reading.command_line.attention_backends == table.choices
    assert names - {"hybrid_linear_attn", PAIR} == table.registered | table.choices


@pytest.mark.parametrize(("version", "undeclared"), [("0.5.13", True), ("0.5.23", False)])
def test_pair_is_a_backend_where_the_wrapper_has_no_rule(version: str, undeclared: bool) -> None:
    """0.5.13's wrapper keeps the copy on whatever it wraps; 0.5.23's asks what it wraps."""
    assert (PAIR in {backend.name for backend in _reading(version).backends}) is undeclared


@pytest.mark.parametrize("version", _TABLES)
def test_reading_a_known_version_meets_no_problem(version: str) -> None:
    """Everything is where the reader expects it."""
    assert _reading(version).problems == ()


@pytest.mark.parametrize("name", ENGINES)
def test_stored_command_line_is_the_wheels(name: str) -> None:
    """What is stored of an engine's options and backends is what its source says."""
    path = files("backend_caps.resolution").joinpath("data", f"{name}.json")
    stored = json.loads(path.read_text("utf-8"))

    assert stored == read_command_line(find_wheel(name.removeprefix("sglang-")))
