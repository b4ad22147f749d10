from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from backend_caps import ANY, ComputeRange, Origin
from backend_caps.capability.backend import Reading, Status
from backend_caps.capability.sets import Windows
from backend_caps.engines.vllm.lookup import windows_of
from backend_caps.engines.vllm.read import KNOWN_VERSIONS
from tests.unit.engines.tables import table
from tests.unit.engines.vllm.building import class_of, declared, files_of, read, read_one, said

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
    """A reading names its engine, version and files; no flag forces anything."""
    reading = read(tmp_path, files_of({"one": ONE, "other": ""}))

    assert (reading.engine, reading.version, reading.source) == ("vllm", "0.33.0", tmp_path.name)
    assert (reading.command_line, reading.problems) == (None, ())
    assert reading.rules is not None
    assert (reading.rules.name, reading.rules.rules) == ("vllm-0.33.0", ())
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


def test_member_of_another_kind_is_reported(tmp_path: Path) -> None:
    """A member that is no text cannot be followed."""
    files = files_of({})
    registry = "vllm/v1/attention/backends/registry.py"
    files[registry] = files[registry].replace('NOTHING = ""', "NOTHING = path_of(3)")

    reading = read(tmp_path, files)

    assert [problem.code for problem in reading.problems] == ["engine-name-not-followed"]
    assert reading.backends == ()


def test_namesakes_are_distinguished(tmp_path: Path) -> None:
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
def test_unknown_version_is_reported(tmp_path: Path, version: str | None, words: str) -> None:
    """A version that nobody compared with the reader is read, with a problem."""
    reading = read(tmp_path, files_of({"one": ONE}), version=version)

    (problem,) = reading.problems
    assert (problem.code, len(reading.backends)) == ("engine-version-unknown", 1)
    assert problem.message.startswith(words)
    assert ", ".join(KNOWN_VERSIONS) in problem.message


@table("vllm_read", "missing_anchor_is_reported")
def test_missing_anchor_is_reported(tmp_path: Path, path: str, missing: list[str]) -> None:
    """What is not where known versions have it is a problem each, and the rest is read."""
    files = files_of({"one": ONE}, {"ONE": "vllm.one.One"})
    del files[path]

    reading = read(tmp_path, files)

    told = [each.message for each in reading.problems if each.code == "engine-anchor-missing"]
    known = "where known versions have it."
    assert told == [f"vllm 0.33.0 has no class {name} in {path}, {known}" for name in missing]
    assert "One" in reading.registry


def test_older_layout_is_read(tmp_path: Path) -> None:
    """Roots and registries are found where releases up to 0.13 have them."""
    files = files_of({}, {"ONE": "vllm.one.One"})
    registry = files.pop("vllm/v1/attention/backends/registry.py")
    backend, builder = files.pop("vllm/v1/attention/backend.py").split("class AttentionMetadata")
    files["vllm/attention/backends/registry.py"] = registry
    files["vllm/attention/backends/abstract.py"] = backend
    files["vllm/v1/attention/backends/utils.py"] = f"class AttentionMetadata{builder}"
    files["vllm/one.py"] = f"from vllm.attention.backends.abstract import AttentionBackend\n{ONE}"

    reading = read(tmp_path, files)

    assert [each.name for each in reading.backends] == ["ONE", "One"]
    assert reading.problems == ()


def test_broken_file_is_reported(tmp_path: Path) -> None:
    """A file that is no Python is a problem that names its classes; the others are read."""
    files = files_of({"one": ONE, "two": "class Two(AttentionBackend):\n  def\n"})

    reading = read(tmp_path, files)

    assert [each.name for each in reading.backends] == ["One"]
    assert [problem.code for problem in reading.problems] == ["engine-file-not-parsed"]


def _windows(test: str) -> Windows | None:
    return windows_of(ast.parse(test, mode="eval").body, "cap")


@table("vllm_constants", "test_is_windows")
def test_test_is_windows(test: str, windows: str) -> None:
    """A test of a compute capability comes to the windows that it lets pass; none is any."""
    assert _windows(test) == (tuple(map(_window, windows.split())) or ANY)


def _window(text: str) -> ComputeRange:
    first, _, below = text.partition("-")
    return ComputeRange(_version(first), _version(below) if below else None)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


@table("vllm_constants", "other_test_is_not_read")
def test_other_test_is_not_read(test: str) -> None:
    """A test that asks for anything else, or that nothing passes, has no windows."""
    assert _windows(test) is None


def _method(*lines: str) -> str:
    return "\n".join(["def supports_compute_capability(cls, cap):", *(f"    {x}" for x in lines)])


def test_capability_is_declared(tmp_path: Path) -> None:
    """The windows of a class's own test are declared."""
    backend = read_one(tmp_path, _method("return cap.major == 9"))

    assert declared(backend).capabilities.compute_capability == (ComputeRange((9, 0), (10, 0)),)


def test_capability_with_another_question_is_undeclared(tmp_path: Path) -> None:
    """Where one of the answers asks for more, nothing is declared."""
    method = _method("if xpu():", "    return True", "return cap.major == 9 and built()")

    backend = read_one(tmp_path, method)

    reading = said(backend, "compute_capability")
    assert (reading.origin, reading.value) == (Origin.CONDITIONAL, None)
    assert reading.words == (
        "supports_compute_capability() returns True where xpu(); else cap.major == 9 and built()"
    )
    assert declared(backend).capabilities.stated() == {}


@table("vllm_flags", "flag_is_read")
def test_flag_is_read(tmp_path: Path, body: str, name: str, value: object, words: str) -> None:
    """A flag that the root has and that is no capability is listed by the engine's name."""
    backend = read_one(tmp_path, body)

    assert class_of(backend).attributes == {
        name: Reading(origin=Origin.DECLARED, words=words, value=value, declared_at="vllm/one.py:5")
    }


def test_flag_that_depends_has_its_condition(tmp_path: Path) -> None:
    """A flag that only running code knows is listed in the source's words, without a value."""
    body = "def supports_bias(cls):\n    if old():\n        return False\n    return probe()"

    flag = class_of(read_one(tmp_path, body)).attributes["supports_bias"]
    assert (flag.origin, flag.value) == (Origin.CONDITIONAL, None)
    assert flag.words == "supports_bias() returns False where old(); else probe()"


def test_conditions_are_said_once(tmp_path: Path) -> None:
    """What stood before and has failed is not said again, what holds for both is."""
    body = """
    def supports_bias(cls):
        if old():
            if patched():
                return True
            return False
        return probe()
    """

    backend = read_one(tmp_path, dedent(body))

    assert class_of(backend).attributes["supports_bias"].words == (
        "supports_bias() returns True where old() and patched(); else False where old(); "
        "else probe()"
    )


def test_inherited_flag_names_its_class(tmp_path: Path) -> None:
    """A flag that a parent states is listed as inherited."""
    parent = "class Parent(AttentionBackend):\n    def supports_bias(cls):\n        return True"

    backend = read_one(tmp_path, "pass", before=parent, base="Parent")

    flag = class_of(backend).attributes["supports_bias"]
    assert (flag.origin, flag.value, flag.inherited_from) == (Origin.INHERITED, True, "Parent")


KERNELS = """
class KernelRoot:
    supports_shards = False

class Plain(KernelRoot):
    pass

class Kernel(KernelRoot):
    supports_shards = True

class SameKernel(Kernel):
    pass

class Computed(KernelRoot):
    supports_shards = probe()

class Bare:
    pass

class Builder(AttentionMetadataBuilder):
    shards_of_many = True

class Parent(AttentionBackend):
    def get_impl_cls():
        return Kernel
"""


@table("vllm_flags", "flag_of_another_class_is_read")
def test_flag_of_another_class_is_read(
    tmp_path: Path, body: str, name: str, value: object, words: str
) -> None:
    """A flag that the root works out of another statement has that one's value and words."""
    flag = class_of(read_one(tmp_path, body, before=KERNELS)).attributes[name]

    assert (flag.origin, flag.value) == (Origin.DECLARED, value)
    assert flag.words.startswith(f"{name}() returns ")
    assert flag.words.endswith(f"; {words}")


@table("vllm_flags", "flag_of_another_class_is_not_read")
def test_flag_of_another_class_is_not_read(tmp_path: Path, body: str) -> None:
    """A flag of a class that only its root states, or that is not found, is not listed."""
    assert "supports_shards" not in class_of(read_one(tmp_path, body, before=KERNELS)).attributes


@pytest.mark.parametrize(
    ("body", "base", "inherited_from"),
    [
        pytest.param("pass", "Parent", "Parent", id="a parent names the class"),
        pytest.param(
            "def get_impl_cls():\n    return SameKernel",
            "AttentionBackend",
            "Kernel",
            id="the class inherits",
        ),
    ],
)
def test_flag_of_another_class_is_inherited(
    tmp_path: Path, body: str, base: str, inherited_from: str
) -> None:
    """A flag is inherited where a parent names the class, or where that class inherits it."""
    backend = read_one(tmp_path, body, before=KERNELS, base=base)

    flag = class_of(backend).attributes["supports_shards"]
    assert (flag.origin, flag.value) == (Origin.INHERITED, True)
    assert flag.inherited_from == inherited_from


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


def test_flags_of_several_builders_are_conditional(tmp_path: Path) -> None:
    """A flag that one of several builders states has no value, and the words of each."""
    before = """
        class Wide(AttentionMetadataBuilder):
            needs_width = True

        class Narrow(AttentionMetadataBuilder):
            pass
    """
    body = "def get_builder_cls():\n    if wide():\n        return Wide\n    return Narrow"

    flag = class_of(read_one(tmp_path, body, before=before)).attributes["needs_width"]
    assert (flag.origin, flag.value) == (Origin.CONDITIONAL, None)
    assert flag.words == "Wide: needs_width = True; Narrow: states no needs_width"
