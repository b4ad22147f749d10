from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps import ANY, AttentionArch, Origin
from tests.unit.engines.tables import table
from tests.unit.engines.vllm.building import (
    as_json,
    class_of,
    declared,
    files_of,
    method,
    read,
    read_one,
    said,
)

CONSTANTS = """
SIZES = (64, 128)
BASE = 16
NAMES = ["fp8"]
ALIAS = SIZES
if on_rocm():
    EITHER = (1,)
else:
    EITHER = (2,)
"""
PARENT = """
class Parent(AttentionBackend):
    supported_dtypes = [torch.bfloat16]

    def is_mla(cls):
        return True
"""


@table("vllm_limits", "dtypes_are_the_list")
def test_dtypes_are_the_list(tmp_path: Path, stated: str, value: object) -> None:
    """Dtypes have the names that they have here."""
    backend = read_one(tmp_path, f"supported_dtypes = {stated}", before=CONSTANTS)

    assert said(backend, "dtypes").origin is Origin.DECLARED
    assert as_json(backend)["dtypes"] == value


def test_empty_list_is_what_the_root_makes_of_it(tmp_path: Path) -> None:
    """An empty list stands for all where the root says so, and else for none: undeclared."""
    body = "supported_dtypes = []\nsupported_kv_cache_dtypes = []"

    backend = read_one(tmp_path, body)

    assert said(backend, "dtypes").origin is Origin.UNDECLARED
    assert declared(backend).capabilities.kv_cache_dtypes is ANY


def test_list_that_the_root_does_not_look_at_is_undeclared(tmp_path: Path) -> None:
    """Where the root has no method for a list, its words are kept, and nothing is declared."""
    files = files_of({"one": "class One(AttentionBackend):\n    supported_dtypes = [torch.half]\n"})
    roots = "vllm/v1/attention/backend.py"
    files[roots] = files[roots].replace("def supports_dtype(", "def admits_dtype(")

    backend = read(tmp_path, files).registry["One"]

    assert said(backend, "dtypes").words == (
        "supported_dtypes = [torch.half] (supports_dtype() is not read)"
    )
    assert declared(backend).capabilities.stated() == {}


def test_auto_is_no_dtype(tmp_path: Path) -> None:
    """`auto` is left out of the KV cache's dtypes, and the words say so."""
    backend = read_one(tmp_path, 'supported_kv_cache_dtypes = ["auto", "fp8"]')

    assert declared(backend).capabilities.kv_cache_dtypes == {"fp8"}
    assert said(backend, "kv_cache_dtypes").words == (
        "supported_kv_cache_dtypes = ['auto', 'fp8'] ('auto', the model's own dtype, is no dtype "
        "by itself)"
    )
    assert class_of(backend).attributes["supported_kv_cache_dtypes"].value == ("auto", "fp8")


def test_auto_alone_is_undeclared(tmp_path: Path) -> None:
    """Where the KV cache has the model's dtype and no other, no dtype can be declared."""
    backend = read_one(tmp_path, 'supported_kv_cache_dtypes = ["auto"]')

    assert said(backend, "kv_cache_dtypes").origin is Origin.UNDECLARED
    assert declared(backend).capabilities.stated() == {}


def test_list_without_auto_loses_nothing(tmp_path: Path) -> None:
    """A list that has no `auto` is said without a remark."""
    backend = read_one(tmp_path, 'supported_kv_cache_dtypes = ["fp8"]')

    assert said(backend, "kv_cache_dtypes").words == "supported_kv_cache_dtypes = ['fp8']"


@table("vllm_limits", "method_that_looks_up_decides_nothing")
def test_method_that_looks_up_decides_nothing(tmp_path: Path, lines: list[str]) -> None:
    """A method that looks its argument up in the list leaves the list as it is."""
    test = method("supports_kv_cache_dtype", *lines, argument="kind")

    backend = read_one(tmp_path, f'supported_kv_cache_dtypes = ["fp8"]\n{test}')

    assert declared(backend).capabilities.kv_cache_dtypes == {"fp8"}


def test_method_that_decides_leaves_the_list_open(tmp_path: Path) -> None:
    """Where a method decides in the list's place, nothing is declared; the words have both."""
    test = method("supports_dtype", "return dtype in cls.other", argument="dtype")

    backend = read_one(tmp_path, f"supported_dtypes = [torch.float16]\n{test}")

    assert said(backend, "dtypes").origin is Origin.CONDITIONAL
    assert said(backend, "dtypes").words == (
        "supports_dtype() returns dtype in cls.other (supported_dtypes = [torch.float16])"
    )
    assert declared(backend).capabilities.stated() == {}


def test_inherited_value_is_undeclared(tmp_path: Path) -> None:
    """What a parent below the root states is shown with its name, and is not declared."""
    backend = read_one(tmp_path, "pass", before=PARENT, base="Parent")

    reading = said(backend, "dtypes")
    assert (reading.origin, reading.value) == (Origin.INHERITED, {"bfloat16"})
    assert reading.inherited_from == "Parent"
    assert declared(backend).capabilities.stated() == {}


def test_root_value_has_no_words(tmp_path: Path) -> None:
    """What only the root states is nobody's statement."""
    backend = read_one(tmp_path, "pass")

    assert (class_of(backend).readings, class_of(backend).attributes) == ({}, {})


def test_value_by_condition_is_declared_with_it(tmp_path: Path) -> None:
    """An attribute that a condition replaces has the base's value and a condition."""
    body = "supported_dtypes = [torch.float16]\nif new():\n    supported_dtypes = [torch.float32]"

    backend = read_one(tmp_path, body)

    (when,) = declared(backend).conditions
    assert declared(backend).capabilities.dtypes == {"float16"}
    assert (str(when.given), when.capabilities.dtypes) == ("new()", {"float32"})


@table("vllm_limits", "head_sizes_are_the_list")
def test_head_sizes_are_the_list(tmp_path: Path, stated: str, value: object) -> None:
    """Head sizes are one of a list, and an empty list stands for all."""
    test = method("get_supported_head_sizes", f"return {stated}")

    assert as_json(read_one(tmp_path, test, before=CONSTANTS))["head_sizes"] == value


@table("vllm_limits", "list_that_cannot_be_read_is_undeclared")
def test_list_that_cannot_be_read_is_undeclared(
    tmp_path: Path, stated: str, origin: str | None
) -> None:
    """A list of which running code decides an item is undeclared as a whole."""
    test = method("get_supported_head_sizes", "size = BASE = f()", f"return {stated}")

    backend = read_one(tmp_path, test, before=CONSTANTS)

    assert said(backend, "head_sizes").origin.value == (origin or "conditional")
    assert declared(backend).capabilities.stated() == {}


@table("vllm_limits", "test_of_a_head_size_is_read")
def test_test_of_a_head_size_is_read(tmp_path: Path, lines: list[str], sizes: object) -> None:
    """A class's own test of a head size decides, as one of a page does."""
    test = method("supports_head_size", *lines, argument="size")

    assert as_json(read_one(tmp_path, test, before=CONSTANTS))["head_sizes"] == sizes


@table("vllm_limits", "arch_is_what_models_must_be")
def test_arch_is_what_models_must_be(
    tmp_path: Path, flags: dict[str, str], archs: list[str]
) -> None:
    """A sparse MLA backend takes no other MLA models, so it is sparse."""
    body = "\n".join(method(name, f"return {value}") for name, value in flags.items())

    backend = read_one(tmp_path, body)

    assert declared(backend).capabilities.attention_arch == set(map(AttentionArch, archs))
    assert set(said(backend, "attention_arch").words.split("; ")) == {
        f"{name}() returns {value}" for name, value in flags.items()
    }


@table("vllm_limits", "other_arch_is_undeclared")
def test_other_arch_is_undeclared(tmp_path: Path, value: str, origin: str) -> None:
    """What is not MLA may be any of several kinds, and what depends may be any."""
    backend = read_one(tmp_path, method("is_mla", f"return {value}"))

    assert said(backend, "attention_arch").origin.value == origin
    assert declared(backend).capabilities.stated() == {}


def test_arch_in_part_inherited_is_undeclared(tmp_path: Path) -> None:
    """Where a parent states one of the flags, the whole is the parent's too."""
    body = method("is_sparse", "return True")

    backend = read_one(tmp_path, body, before=PARENT, base="Parent")

    assert said(backend, "attention_arch").inherited_from == "Parent"
    assert "attention_arch" not in declared(backend).capabilities.stated()


@pytest.mark.parametrize(
    ("blocks", "value"),
    [
        pytest.param("[]", "any", id="none"),
        pytest.param("[64]", {"exact": 64}, id="one"),
        pytest.param("[MultipleOf(16)]", {"multiple_of": 16}, id="multiples"),
        pytest.param("[16, 64]", {"one_of": [16, 64]}, id="some"),
        pytest.param("[48, MultipleOf(64)]", "undeclared", id="no set holds them"),
    ],
)
def test_blocks_of_kernels_stand_apart_from_pages(
    tmp_path: Path, blocks: str, value: object
) -> None:
    """They are the list itself, whatever a page may be."""
    text = method("get_supported_kernel_block_sizes", f"return {blocks}")

    assert as_json(read_one(tmp_path, text))["kernel_block_sizes"] == value
