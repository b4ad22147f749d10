"""What is read from vLLM's wheel, against a table that was written from the same source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pytest

from backend_caps import ANY, AttentionArch, Exact, MultipleOf, OneOf, Origin
from backend_caps.capability.backend import Backend, EngineClass, Reading
from backend_caps.capability.provenance import Status
from backend_caps.capability.sets import Sizes
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.source.files import Tree, open_tree
from backend_caps.engines.vllm.read import read_vllm
from backend_caps.resolution.launch import LEVELS
from tests.upstream.tables.rows import Row, same_condition, vllm_rows

pytestmark = [pytest.mark.upstream, pytest.mark.vllm_wheel]

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
ROWS = vllm_rows("0.33.0")
MADE = [row for row in ROWS if row.at is not None]
"""The rows that have a class."""
BY_FIELD = {
    "dtypes": "supported_dtypes",
    "kv_cache_dtypes": "supported_kv_cache_dtypes",
    "head_sizes": "head_sizes",
    "block_sizes": "kernel_block_sizes",
    "compute_capability": "compute_capability",
}
ARCHS = {
    "is_sparse": AttentionArch.SPARSE,
    "is_mla": AttentionArch.MLA,
    "is_ssm": AttentionArch.SSM,
}
"""Of several the first counts."""
NUM_LISTED = {"0.15.1": 13, "0.33.0": 40}
"""As many classes at least, of a release, state the blocks that its root looks at."""
each_row = pytest.mark.parametrize("row", MADE, ids=lambda row: row.name)


class DeviceCapability(NamedTuple):
    """vLLM's, as far as its tests of one ask."""

    major: int
    minor: int


@pytest.fixture(scope="module")
def reading() -> EngineReading:
    """Read the wheel."""
    return read_vllm(_tree("0.33.0"))


def _tree(version: str) -> Tree:
    wheels = sorted(WHEELS.glob(f"vllm-{version}-*.whl"))
    assert wheels, f"no wheel of vllm {version} in .cache/wheels; fetch it: make vllm"
    return open_tree("vllm", wheels[0])


def _of(reading: EngineReading, row: Row) -> tuple[Backend, EngineClass]:
    """Find the record of the class behind a row's name."""
    registry = reading.registry
    declaration = registry[row.name].declaration
    assert declaration is not None
    (part,) = declaration.parts
    backend = registry[part.backend]
    assert backend.engine_class is not None
    return backend, backend.engine_class


def _value(readings: Mapping[str, Reading], name: str) -> object:
    return readings[name].value if name in readings else None


def test_reading_has_every_name(reading: EngineReading) -> None:
    """The names of both registries are read, placeholders aside, and nothing else is a name."""
    names = {each.name for each in reading.backends if each.engine_class is None}

    assert names == {row.name for row in ROWS if row.path is not None}


def test_reading_tells_of_the_missing_class(reading: EngineReading) -> None:
    """The only problem is the name whose class is not in the wheel."""
    lost = [row.name for row in ROWS if row.path is not None and row.at is None]

    broken = [each.name for each in reading.backends if each.status is not Status.OK]

    assert (broken, len(reading.problems)) == (lost, len(lost))


@each_row
def test_class_is_the_tables(reading: EngineReading, row: Row) -> None:
    """A name stands for the class, with the builder, that the table names."""
    backend, engine_class = _of(reading, row)

    read = (engine_class.path, backend.source.declared_at)
    assert (*read, _value(engine_class.attributes, "get_builder_cls")) == (
        row.path,
        row.at,
        row.builder,
    )
    assert row.name in engine_class.registered_as


@each_row
def test_graph_is_the_tables(reading: EngineReading, row: Row) -> None:
    """What is read of graphs, where and from whom, is what the table says."""
    backend, engine_class = _of(reading, row)
    graph = engine_class.readings["graph_replay"]

    expected = None if row.graph.level is None else LEVELS[row.graph.level]
    assert (graph.origin.value, graph.value) == (row.graph.said, expected)
    assert (graph.declared_at, graph.inherited_from) == (row.graph.at, row.graph.base)
    assert graph.words.startswith(f"{row.builder}: ")
    assert backend.declaration is not None
    declared = backend.declaration.capabilities.stated().get("graph_replay")
    if row.graph.said != "conditional":
        assert declared == (expected if row.graph.said == "declared" else None)


@pytest.mark.parametrize("row", [row for row in MADE if row.graph.cases], ids=lambda row: row.name)
def test_graph_cases_are_the_tables(reading: EngineReading, row: Row) -> None:
    """Each condition is the table's, and those before it have failed; the base is what is left."""
    declaration = _of(reading, row)[0].declaration
    assert declaration is not None
    *cases, (left, otherwise) = row.graph.cases
    read = [
        (when.capabilities.graph_replay, str(when.given.expression))
        for when in declaration.conditions
        if "graph_replay" in when.capabilities.stated()
    ]

    assert otherwise == "otherwise"
    assert declaration.capabilities.graph_replay == LEVELS[left]
    assert [value for value, _ in read] == [LEVELS[level] for level, _ in cases]
    failed: set[str] = set()
    for (_, expected), (_, condition) in zip(cases, read, strict=True):
        own = _conjuncts(condition) - failed
        assert own == _conjuncts(expected)
        walked = (node for node in ast.walk(ast.parse(expected)) if isinstance(node, ast.expr))
        failed |= {ast.unparse(ast.UnaryOp(op=ast.Not(), operand=node)) for node in walked}


def _conjuncts(condition: str) -> set[str]:
    """Take `a and (b and c)` apart."""
    node = ast.parse(condition, mode="eval").body
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return set().union(*(_conjuncts(ast.unparse(each)) for each in node.values))
    return {ast.unparse(node)}


@each_row
def test_dtypes_are_the_tables(reading: EngineReading, row: Row) -> None:
    """The dtypes are the list that the class states."""
    readings = _of(reading, row)[1].readings

    expected = None if row.dtypes is None else frozenset(row.dtypes)
    assert _value(readings, "dtypes") == expected


@each_row
def test_kv_cache_dtypes_are_the_tables(reading: EngineReading, row: Row) -> None:
    """The list is the class's own; what is declared of it is without `auto`."""
    engine_class = _of(reading, row)[1]
    declared = _value(engine_class.readings, "kv_cache_dtypes")

    assert _value(engine_class.attributes, "supported_kv_cache_dtypes") == row.kv_cache_dtypes
    assert declared in (None, frozenset(row.kv_cache_dtypes or ()) - {"auto"})


@each_row
def test_head_sizes_are_the_tables(reading: EngineReading, row: Row) -> None:
    """The head sizes are the list, any, or left open where a method of the class decides."""
    readings = _of(reading, row)[1].readings

    match row.head_sizes:
        case tuple(sizes):
            read = _sizes(_value(readings, "head_sizes"))
            assert {size for size in range(1, 1025) if size in read} == set(sizes)
        case "any":
            assert _value(readings, "head_sizes") is ANY
        case said:
            assert _value(readings, "head_sizes") is None
            assert ("head_sizes" in readings) == (said == "depends")


@each_row
def test_block_sizes_are_the_tables(reading: EngineReading, row: Row) -> None:
    """The blocks are the list; every page that is declared is one that vLLM would take."""
    engine_class = _of(reading, row)[1]
    blocks = row.block_sizes if isinstance(row.block_sizes, tuple) else None
    pages = _value(engine_class.readings, "page_sizes")
    kernel = _value(engine_class.readings, "kernel_block_sizes")

    if blocks is not None:
        assert kernel in (None, _of_blocks(blocks))
    else:
        assert kernel is None
    if blocks is not None and pages is not None:
        bases = [int(str(block).removeprefix("multiple of ")) for block in blocks]
        admitted = [size for size in range(1, 1025) if size in _sizes(pages)]
        assert admitted
        assert all(any(size % base == 0 for base in bases) for size in admitted)


@pytest.mark.parametrize("version", ["0.15.1", "0.33.0"])
def test_pages_are_what_the_root_takes(version: str) -> None:
    """A page is declared for a list of blocks where that release's own root takes it, run here."""
    tree = _tree(version)
    takes = _root_test({path: text.decode() for path, text in tree.files.items()})
    classes = (backend.engine_class for backend in read_vllm(tree).backends)
    listed = {
        each.path: (blocks, each.readings["page_sizes"].value)
        for each in classes
        if each and "kernel_block_sizes" in each.readings
        if (blocks := _blocks_of(each.readings["kernel_block_sizes"].value))
        if each.readings["page_sizes"].words.startswith("get_supported_kernel_block_sizes")
    }

    assert len(listed) >= NUM_LISTED[version]
    for given, pages in set(listed.values()):
        own = _Blocks(given)
        assert {n for n in range(1, 1025) if n in _sizes(pages)} == {
            n for n in range(1, 1025) if takes(own, n)
        }


def _blocks_of(sizes: object) -> tuple[int | str, ...]:
    """List the blocks of a set of sizes; nothing for another value."""
    match sizes:
        case Exact(exact=size):
            return (size,)
        case MultipleOf(multiple_of=base):
            return (f"multiple of {base}",)
        case OneOf(one_of=several):
            return tuple(sorted(several))
    return ()


class _MultipleOf(NamedTuple):
    """vLLM's, as far as its test of a page asks."""

    base: int


@dataclass(frozen=True)
class _Blocks:
    """A class with these blocks, as far as a root's test of a page asks."""

    blocks: tuple[int | str, ...]

    def get_supported_kernel_block_sizes(self) -> list[int | _MultipleOf]:
        """Return the blocks."""
        return [
            each if isinstance(each, int) else _MultipleOf(int(each.rpartition(" ")[2]))
            for each in self.blocks
        ]


def _root_test(files: Mapping[str, str]) -> Callable[[_Blocks, int], bool]:
    """Make a function of a release's `AttentionBackend.supports_block_size`, as it stands."""
    nodes = ast.walk(ast.parse(files["vllm/v1/attention/backend.py"]))
    (test,) = (
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == "supports_block_size"
    )
    test.decorator_list, test.returns = [], None
    test.body = [node for node in test.body if not isinstance(node, ast.ImportFrom)]
    for argument in test.args.args:
        argument.annotation = None
    sizes = re.search(r"^BlockSize = (.+)$", files["vllm/config/cache.py"], re.MULTILINE)
    names: dict[str, Any] = {"MultipleOf": _MultipleOf, "get_args": get_args, "Literal": Literal}
    if sizes is not None:
        names["BlockSize"] = eval(sizes[1], names)  # noqa: S307 - a Literal of the wheel
    exec(ast.unparse(test), names)  # noqa: S102 - a function of the wheel
    function: Callable[[_Blocks, int], bool] = names["supports_block_size"]
    return function


def _of_blocks(blocks: tuple[int | str, ...]) -> Sizes:
    """Return the set of a list: multiples of one block, or exact ones."""
    match blocks:
        case [str(multiple)]:
            return MultipleOf(int(multiple.removeprefix("multiple of ")))
        case [int(block)]:
            return Exact(block)
    return OneOf(frozenset(block for block in blocks if isinstance(block, int)))


def _sizes(value: object) -> Sizes:
    assert not isinstance(value, str | None)
    return value  # type: ignore[return-value]  # a reading's value is of its capability


@each_row
def test_compute_capability_is_the_tables(reading: EngineReading, row: Row) -> None:
    """The words are the class's own test; the windows hold what that test lets pass."""
    readings = _of(reading, row)[1].readings

    if row.compute_capability is None:
        assert "compute_capability" not in readings
        return
    read = readings["compute_capability"]
    said = read.words.removeprefix("supports_compute_capability() returns ")
    assert same_condition(said, row.compute_capability)
    for major, minor in product(range(7, 14), range(4)) if read.value is not None else ():
        own = DeviceCapability(major, minor)
        names = {"capability": own, "DeviceCapability": DeviceCapability}
        passes = eval(row.compute_capability, names)  # noqa: S307 - the table's own expression
        windows = read.value if isinstance(read.value, tuple) else None
        within = windows is None or any((major, minor) in window for window in windows)
        assert within is passes


@each_row
def test_attention_arch_is_the_tables(reading: EngineReading, row: Row) -> None:
    """A class states MLA, sparse and state-space as the table says."""
    engine_class = _of(reading, row)[1]
    stated = {name: getattr(row, name) for name in ARCHS}

    arch = next((frozenset({kind}) for name, kind in ARCHS.items() if stated[name]), None)
    if stated["is_sparse"] and not stated["is_mla"]:
        arch = frozenset({AttentionArch.BLOCK_SPARSE})
    for name, value in stated.items():
        assert bool(_value(engine_class.attributes, name)) is value
    assert _value(engine_class.readings, "attention_arch") == arch


@each_row
def test_inherited_is_the_tables(reading: EngineReading, row: Row) -> None:
    """What a parent states and the class does not is marked, and is not declared."""
    backend, engine_class = _of(reading, row)
    readings = {**engine_class.attributes, **engine_class.readings}
    readings["supported_dtypes"] = readings.get("dtypes", Reading(origin=Origin.FORCED, words=""))

    read = {
        field
        for field, name in BY_FIELD.items()
        if name in readings and readings[name].origin is Origin.INHERITED
    }

    assert read == set(row.inherits)
    assert backend.declaration is not None
    assert backend.declaration.capabilities.stated().keys().isdisjoint(read)
