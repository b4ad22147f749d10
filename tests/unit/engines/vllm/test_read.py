from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.capability.backend import Status
from backend_caps.engines.vllm.read import KNOWN_VERSIONS
from tests.unit.engines.tables import table
from tests.unit.engines.vllm.building import class_of, declared, files_of, read

ONE = """
class One(AttentionBackend):
    pass
"""


def test_name_stands_for_its_class(tmp_path: Path) -> None:
    """A registered name is a record whose one part is the class, which knows the name."""
    reading = read(tmp_path, files_of({"one": ONE}, {"ONE": "vllm.one.One"}))

    name, made = reading.registry["ONE"], reading.registry["One"]
    assert [part.backend for part in declared(name).parts] == ["One"]
    assert (name.engine_class, name.source.declared_at) == (
        None,
        "vllm/v1/attention/backends/registry.py:3",
    )
    assert (class_of(made).path, class_of(made).registered_as) == ("vllm.one.One", ("ONE",))
    assert str(made.source) == "vllm 0.33.0, vllm/one.py:4"


def test_reading_says_what_it_is_of(tmp_path: Path) -> None:
    """A reading names its engine, version and files, and has neither rules nor options."""
    reading = read(tmp_path, files_of({"one": ONE, "other": ""}))

    assert (reading.engine, reading.version, reading.source) == ("vllm", "0.33.0", tmp_path.name)
    assert (reading.rules, reading.command_line, reading.problems) == (None, None, ())
    assert (reading.num_files, reading.num_parsed) == (5, 3)


def test_class_without_a_name_is_read(tmp_path: Path) -> None:
    """A class that no name is registered for, at any distance from the root, is a record."""
    text = f"{ONE}\nclass Two(One):\n    pass\n\nclass Other:\n    pass\n"

    reading = read(tmp_path, files_of({"one": text}))

    assert [(each.name, class_of(each).registered_as) for each in reading.backends] == [
        ("One", ()),
        ("Two", ()),
    ]


def test_placeholder_is_no_name(tmp_path: Path) -> None:
    """A member of a registry that has no class is neither a backend nor a problem."""
    reading = read(tmp_path, files_of({}))

    assert (reading.backends, reading.problems) == ((), ())


@table("vllm_read", "name_without_class_is_broken")
def test_name_without_class_is_broken(tmp_path: Path, path: str) -> None:
    """A name whose class is not in the source is a record, broken, and a problem."""
    text = """
        from elsewhere import make
        def helper():
            return 3
        made_elsewhere = make()
        number = helper()
    """

    reading = read(tmp_path, files_of({"one": text}, {"LOST": path}))

    (lost,) = reading.backends
    assert (lost.name, lost.status, lost.declaration) == ("LOST", Status.BROKEN, None)
    assert reading.problems == lost.problems
    assert "the name 'LOST' (vllm/v1/attention/backends/registry.py:3)" in lost.problems[0].message


def test_member_of_another_kind_is_told(tmp_path: Path) -> None:
    """A member that is no text cannot be followed."""
    files = files_of({})
    registry = "vllm/v1/attention/backends/registry.py"
    files[registry] = files[registry].replace('NOTHING = ""', "NOTHING = path_of(3)")

    reading = read(tmp_path, files)

    assert [problem.code for problem in reading.problems] == ["engine-name-not-followed"]
    assert reading.backends == ()


def test_namesakes_are_told_apart(tmp_path: Path) -> None:
    """Classes of one name have as much of their modules before it as tells them apart."""
    same = {"old/made": ONE, "new/made": ONE, "one": ONE.replace("One", "Two")}
    names = {"OLD": "vllm.old.made.One", "NEW": "vllm.new.made.One", "Two": "vllm.one.Two"}

    reading = read(tmp_path, files_of(same, names))

    assert [part.backend for part in declared(reading.registry["OLD"]).parts] == ["old.made.One"]
    assert sorted(reading.registry) == [
        "NEW",
        "OLD",
        "Two",
        "new.made.One",
        "old.made.One",
        "one.Two",
    ]


def test_class_defined_twice_is_two_parts(tmp_path: Path) -> None:
    """Of a class that a condition chooses from two, each counts where its condition may hold."""
    text = """
        if on_rocm():
            class One(AttentionBackend):
                pass
        else:
            class One(AttentionBackend):
                is_other = True
    """

    reading = read(tmp_path, files_of({"one": text}, {"ONE": "vllm.one.One"}))

    parts = declared(reading.registry["ONE"]).parts
    assert [(part.backend, str(part.given)) for part in parts] == [
        ("One where on_rocm()", "on_rocm()"),
        ("One where not on_rocm()", "not on_rocm()"),
    ]


def test_name_in_both_registries_is_two(tmp_path: Path) -> None:
    """A name that both registries have is written with its registry."""
    files = files_of({"one": ONE}, {"ONE": "vllm.one.One"}, {"ONE": "vllm.one.One"})

    reading = read(tmp_path, files)

    assert class_of(reading.registry["One"]).registered_as == (
        "AttentionBackendEnum.ONE",
        "MambaAttentionBackendEnum.ONE",
    )


COMPOSITE = """
    def compose(general, causal):
        class Builder(AttentionMetadataBuilder):
            _cudagraph_support = AttentionCGSupport.ALWAYS

        class Composite(AttentionBackend):
            def get_builder_cls():
                return Builder

        Composite.__name__ = "Both"
        return Composite

    Both = compose(General, Causal)
"""


def test_class_that_a_call_makes_is_read(tmp_path: Path) -> None:
    """A name bound to a call is the class that the function defines and returns."""
    reading = read(tmp_path, files_of({"both": COMPOSITE}, {"BOTH": "vllm.both.Both"}))

    (name, made) = reading.backends
    assert (name.name, made.name, class_of(made).path) == ("BOTH", "Both", "vllm.both.Both")
    assert class_of(made).composite == "compose(General, Causal)"
    assert class_of(made).readings["graph_replay"].words.startswith("Builder: ")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        pytest.param("0.34.0", "vllm 0.34.0 is not", id="another version"),
        pytest.param(None, "vllm of unknown version is not", id="no version"),
    ],
)
def test_unknown_version_is_told(tmp_path: Path, version: str | None, words: str) -> None:
    """A version that nobody compared with the reader is read, with a problem."""
    reading = read(tmp_path, files_of({"one": ONE}), version=version)

    (problem,) = reading.problems
    assert (problem.code, len(reading.backends)) == ("engine-version-unknown", 1)
    assert problem.message.startswith(words)
    assert ", ".join(KNOWN_VERSIONS) in problem.message


@table("vllm_read", "missing_anchor_is_told")
def test_missing_anchor_is_told(tmp_path: Path, path: str, missing: list[str]) -> None:
    """What is not where known versions have it is a problem each, and the rest is read."""
    files = files_of({"one": ONE}, {"ONE": "vllm.one.One"})
    del files[path]

    reading = read(tmp_path, files)

    told = [each.message for each in reading.problems if each.code == "engine-anchor-missing"]
    known = "where known versions have it."
    assert told == [f"vllm 0.33.0 has no class {name} in {path}, {known}" for name in missing]
    assert "One" in reading.registry


def test_broken_file_is_told(tmp_path: Path) -> None:
    """A file that is no Python is a problem that names its classes; the others are read."""
    files = files_of({"one": ONE, "two": "class Two(AttentionBackend):\n  def\n"})

    reading = read(tmp_path, files)

    assert [each.name for each in reading.backends] == ["One"]
    assert [problem.code for problem in reading.problems] == ["engine-file-not-parsed"]
