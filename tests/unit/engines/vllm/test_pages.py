from __future__ import annotations

import re
from pathlib import Path

from backend_caps import Origin
from backend_caps.capability.backend import Backend
from tests.unit.engines.tables import data, table
from tests.unit.engines.vllm.building import as_json, files_of, method, read, read_one, said

CONSTANTS = """
SIZES = (64, 128)
ALIAS = SIZES
"""
ROOT = "vllm/v1/attention/backend.py"
OF_0_15_1 = data("vllm_pages")["of_0_15_1"]


@table("vllm_pages", "page_is_a_multiple_of_a_block")
def test_page_is_a_multiple_of_a_block(tmp_path: Path, blocks: str, pages: object) -> None:
    """A page is taken where any of the kernel's blocks divides it, an exact one too."""
    test = method("get_supported_kernel_block_sizes", f"return {blocks}")

    backend = read_one(tmp_path, test, before=CONSTANTS)

    assert as_json(backend)["page_sizes"] == pages
    assert said(backend, "page_sizes").words.endswith(" (a page is any multiple of a block)")


def test_blocks_that_no_set_holds_are_undeclared(tmp_path: Path) -> None:
    """Multiples of two blocks of which none divides the other are no set of sizes here."""
    test = method("get_supported_kernel_block_sizes", "return [48, MultipleOf(64)]")

    backend = read_one(tmp_path, test)

    assert said(backend, "page_sizes").origin is Origin.UNDECLARED
    assert as_json(backend)["page_sizes"] == "undeclared"
    blocks = said(backend, "kernel_block_sizes")
    assert blocks.words == "get_supported_kernel_block_sizes() returns [48, MultipleOf(64)]"


@table("vllm_pages", "test_of_a_page_is_read")
def test_test_of_a_page_is_read(tmp_path: Path, lines: list[str], pages: object) -> None:
    """A class's own test of a page decides, whatever its kernel's blocks are."""
    test = method("supports_block_size", *lines, argument="size")

    assert as_json(read_one(tmp_path, test, before=CONSTANTS))["page_sizes"] == pages


@table("vllm_pages", "other_test_of_a_page_is_undeclared")
def test_other_test_of_a_page_is_undeclared(
    tmp_path: Path, lines: list[str], argument: str
) -> None:
    """A test that is not plain is left in the words."""
    test = method("supports_block_size", *lines, argument=argument)

    backend = read_one(tmp_path, test, before=CONSTANTS)

    assert said(backend, "page_sizes").origin is Origin.CONDITIONAL
    assert as_json(backend)["page_sizes"] == "undeclared"


def _below(tmp_path: Path, body: str, blocks: str, imports: str, sizes: str) -> Backend:
    """Read a class with these blocks, below a root whose test of a page is given."""
    one = f"class One(AttentionBackend):\n    def get_supported_kernel_block_sizes():\n{blocks}\n"
    files = files_of({"one": one})
    test = "\n".join(f"        {line}" for line in body.splitlines())
    own = rf"\1\n{test}\n\n    "
    pattern = r"(def supports_block_size\(cls, size\):)\n.*?(?=def supports_dtype)"
    roots = re.sub(pattern, own.replace("\\n", "\n"), files[ROOT], flags=re.DOTALL)
    files |= {ROOT: f"{imports}\n{roots}", "vllm/config/cache.py": sizes}
    return read(tmp_path, files).registry["One"]


@table("vllm_pages", "page_is_one_of_a_list_too")
def test_page_is_one_of_a_list_too(tmp_path: Path, blocks: str, pages: object) -> None:
    """Under the test of 0.15.1 a page is a multiple of a block, and one of the root's sizes."""
    backend = _below(
        tmp_path, OF_0_15_1["body"], f"        return {blocks}", "", OF_0_15_1["sizes"]
    )

    assert as_json(backend)["page_sizes"] == pages
    assert said(backend, "page_sizes").words.endswith(
        " (a page is any multiple of a block, and one of 1, 16, 32, 64, 128, 256)"
    )


def test_page_that_no_size_of_the_list_is_is_undeclared(tmp_path: Path) -> None:
    """A block that divides no size of the root's list leaves no page to declare."""
    blocks = "        return [MultipleOf(48)]"

    backend = _below(tmp_path, OF_0_15_1["body"], blocks, "", OF_0_15_1["sizes"])

    assert said(backend, "page_sizes").origin is Origin.UNDECLARED
    assert as_json(backend)["page_sizes"] == "undeclared"


@table("vllm_pages", "root_test_is_read")
def test_root_test_is_read(tmp_path: Path, body: str, imports: str | None) -> None:
    """The same test in other words is read: a list from the module, blocks without a name."""
    blocks = "        return [MultipleOf(64)]"

    backend = _below(tmp_path, body, blocks, imports or "", OF_0_15_1["sizes"])

    assert as_json(backend)["page_sizes"] == {"one_of": [64, 128, 256]}


@table("vllm_pages", "other_root_test_is_not_read")
def test_other_root_test_is_not_read(tmp_path: Path, body: str, sizes: str | None) -> None:
    """A root's test that asks for anything else leaves every class's pages undeclared."""
    blocks = "        return [MultipleOf(64)]"

    backend = _below(tmp_path, body, blocks, "", OF_0_15_1["sizes"] if sizes is None else sizes)

    reading = said(backend, "page_sizes")
    assert (reading.origin, reading.value) == (Origin.UNDECLARED, None)
    assert reading.words.endswith(" (supports_block_size() is not read)")
    assert as_json(backend)["page_sizes"] == "undeclared"
