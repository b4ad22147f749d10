from __future__ import annotations

import gc
import inspect
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps import HostSeqLens, Origin
from backend_caps.engines.read import read_engine
from backend_caps.engines.sglang.read import is_wanted
from tests.unit.building import error_of
from tests.unit.engines.sglang.building import (
    ARGS,
    ATTENTION,
    BASE,
    DRAFTS,
    IMPORTS,
    ONE,
    ONE_CLASS,
    OPTIONS,
    REGISTERED_ONE,
    REGISTRY,
    class_of,
    codes,
    drafts,
    parts_of,
    read,
    registry,
)
from tests.unit.engines.tables import table

TWO = f"{ATTENTION}/two.py"


def test_reading_says_what_it_is_of(tmp_path: Path) -> None:
    """A reading has the engine's version, and how much of it was parsed."""
    reading = read(tmp_path, {"sglang/srt/unrelated.py": "x = 1\n"})

    assert (reading.engine, reading.version, reading.source) == ("sglang", "0.5.13", tmp_path.name)
    assert (reading.num_files, reading.num_parsed) == (8, 6)


@table("sglang_read", "only_the_runtime_is_read")
def test_only_the_runtime_is_read(path: str, wanted: bool) -> None:
    """The server's runtime and the version are wanted, and nothing else of the package."""
    assert is_wanted(path) is wanted


def test_unknown_engine_is_refused() -> None:
    """An engine without a reader is named, with those that have one."""
    assert error_of(lambda: read_engine("tgi")) == (
        "no reader knows the engine 'tgi'; known: sglang, vllm. Name one of them."
    )


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_left_as_it_was(tmp_path: Path, enabled: bool) -> None:
    """Reading holds the garbage collector, and gives it back as it found it."""
    (gc.enable if enabled else gc.disable)()
    try:
        read(tmp_path)
        found = gc.isenabled()
    finally:
        gc.enable()

    assert found is enabled


@table("sglang_read", "class_of_no_base_is_a_backend_where_it_states_the_flag")
def test_class_of_no_base_is_a_backend_where_it_states_the_flag(
    tmp_path: Path, text: str, is_backend: bool
) -> None:
    """What SGLang asks for the flag without a base class is found by the flag."""
    assert ("Steps" in read(tmp_path, {TWO: text + "\n"}).registry) is is_backend


def test_class_of_no_base_is_a_backend_where_a_name_makes_it(tmp_path: Path) -> None:
    """A container without base and flag is found by its registration, and is undeclared."""
    made = REGISTERED_ONE.replace("import One", "import Steps").replace("One(", "Steps(")
    one = {ONE: IMPORTS + ONE_CLASS + "class Steps: pass\n", REGISTRY: registry(made)}

    found = class_of(read(tmp_path, one), "Steps")

    assert found.engine_class.registered_as == ("one",)
    assert found.declaration.capabilities.host_seq_lens is not None
    assert "host_seq_lens" not in found.engine_class.readings


def test_roles_are_those_of_the_places_that_names_make_it_for(tmp_path: Path) -> None:
    """A class takes the roles in which some name uses it, and says which."""
    reading = read(tmp_path)

    roles = {name: class_of(reading, name).engine_class.readings["roles"] for name in ONES}
    assert {name: each.words for name, each in roles.items()} == {
        "One": "made as draft, draft_extend, target for one",
        "OneSteps": "made as draft for one",
    }


ONES = ("One", "OneSteps")


@pytest.mark.parametrize(
    ("value", "level"),
    [
        pytest.param("True", HostSeqLens.EXACT, id="True"),
        pytest.param("False", HostSeqLens.NONE, id="False"),
    ],
)
def test_root_declares_what_a_server_reads_of_classes_that_state_nothing(
    tmp_path: Path, value: str, level: HostSeqLens
) -> None:
    """The base class's own value is a declaration of the root, with its line."""
    text = f"class AttentionBackend:\n    needs_cpu_seq_lens: bool = {value}\n"
    root = read(tmp_path, {BASE: text}).root

    assert root is not None
    own = class_of(replace(read(tmp_path), backends=(root,)), "AttentionBackend")
    assert (own.needs.origin, own.needs.value) == (Origin.DECLARED, level)
    assert own.needs.words == f"needs_cpu_seq_lens = {value}"
    assert own.needs.declared_at == f"{BASE}:2"
    assert own.declaration.capabilities.stated() == {"host_seq_lens": level}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("class Other:\n    pass\n", id="no base class"),
        pytest.param("class AttentionBackend:\n    pass\n", id="no flag"),
        pytest.param("class AttentionBackend:\n    needs_cpu_seq_lens = 1\n", id="no bool"),
    ],
)
def test_root_without_a_value_is_none(tmp_path: Path, text: str) -> None:
    """Where the base class states neither True nor False, there is no record of it."""
    assert read(tmp_path, {BASE: text}).root is None


def test_class_that_no_name_makes_has_no_roles(tmp_path: Path) -> None:
    """What only other code makes declares no role."""
    reading = read(tmp_path, {TWO: IMPORTS + "class Two(AttentionBackend): pass\n"})

    assert "roles" not in class_of(reading, "Two").engine_class.readings


ALIASED = (
    OPTIONS
    + """
def replace(args):
    aliases = {"uno": "one", "due": "two", "one": "one"}
    for slot in ("attention_backend", "speculative_draft_attention_backend"):
        warn("deprecated")
"""
)


def test_old_name_means_what_replaces_it(tmp_path: Path) -> None:
    """An alias is a record with the parts of the name that it stands for, if that is there."""
    reading = read(tmp_path, {ARGS: ALIASED})

    assert parts_of(reading, "uno") == parts_of(reading, "one")
    assert "due" not in reading.registry


CHOSEN = (
    IMPORTS
    + """
if HOT:
    class Two(AttentionBackend):
        needs_cpu_seq_lens = False
else:
    class Two(AttentionBackend):
        needs_cpu_seq_lens = True
"""
)
REGISTERED_TWO = (
    REGISTERED_ONE
    + """
@register_attention_backend("two")
def make_two(runner):
    from sglang.srt.layers.attention.two import Two
    return Two(runner)
"""
)


def test_class_that_is_defined_twice_is_two(tmp_path: Path) -> None:
    """Both are listed, each under its condition, and the name means both."""
    files = {TWO: CHOSEN, REGISTRY: registry(REGISTERED_TWO), DRAFTS: drafts("", "", "")}

    reading = read(tmp_path, files)

    values = [class_of(reading, f"Two where {when}").needs.value for when in ("HOT", "not HOT")]
    assert values == ["none", "exact"]
    assert [part[::2] for part in parts_of(reading, "two") if part[1] == "target"] == [
        ("Two where HOT", "HOT"),
        ("Two where not HOT", "not HOT"),
    ]


def test_file_that_breaks_off_leaves_the_rest_to_be_read(tmp_path: Path) -> None:
    """Its classes are named in a problem, what they are made for is undeclared, and no more."""
    broken = IMPORTS + "class Two(AttentionBackend):\n    needs_cpu_seq_lens = False\n    def f("

    reading = read(tmp_path, {TWO: broken, REGISTRY: registry(REGISTERED_TWO)})

    assert codes(reading) == ["engine-file-not-parsed", "engine-name-not-followed"]
    assert reading.problems[0].message.endswith("Not read: Two.")
    assert parts_of(reading, "two")[0] == ("two, not followed", "target", "always")
    assert parts_of(reading, "one")[0] == ("One", "target", "always")


@pytest.mark.parametrize("text", ["", "class (", "class Other: pass\n"])
def test_missing_base_class_leaves_every_name_undeclared(tmp_path: Path, text: str) -> None:
    """Without the class that all descend from no class is read, and that is reported."""
    reading = read(tmp_path, {BASE: text})

    assert [*reading.registry] == ["one"]
    assert parts_of(reading, "one") == []
    messages = [each.message for each in reading.problems if each.code == "engine-anchor-missing"]
    assert messages == [
        f"sglang 0.5.13 has no class AttentionBackend in {BASE}, where known versions have it."
    ]


def test_source_that_is_deeper_than_the_stack_is_refused(tmp_path: Path) -> None:
    """What recurses too deep is the source's fault, and is reported as such."""
    nested = "".join(f"{'    ' * depth}if x{depth}:\n" for depth in range(1, 30))
    text = (
        f"{IMPORTS}class Two(AttentionBackend):\n{nested}{'    ' * 30}needs_cpu_seq_lens = False\n"
    )
    read(tmp_path, {TWO: text})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 35)

    try:
        told = error_of(lambda: read_engine("sglang", tmp_path))
    finally:
        sys.setrecursionlimit(limit)

    assert told == (
        f"{tmp_path} is nested deeper than can be read; expected a wheel of "
        "sglang, or a folder with sglang/ in it. Name another with --source."
    )


def test_labels_are_unique_over_files(tmp_path: Path) -> None:
    """Two classes of one name are two records, called by their files too."""
    two = IMPORTS + "class One(AttentionBackend): pass\n"

    reading = read(tmp_path, {TWO: two})

    assert [*reading.registry] == ["OneSteps", "one", "one.One", "two.One"]
    assert parts_of(reading, "one")[0] == ("one.One", "target", "always")


def test_labels_stay_when_another_class_comes(tmp_path: Path) -> None:
    """A new class of another name changes no record's name."""
    before = read(tmp_path, {TWO: CHOSEN})

    after = read(tmp_path, {TWO: "import os\n" + CHOSEN + "class Three(AttentionBackend): pass\n"})

    assert set(after.registry) == {*before.registry, "Three"}


def test_each_engine_is_read_by_its_own_reader(tmp_path: Path) -> None:
    """Asked for vLLM, the reader of vLLM reads."""
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")

    assert read_engine("vllm", tmp_path).engine == "vllm"
