"""What is read of vLLM 0.32.0's classes, against what the classes answer when they are called.

`vllm_classes` made the table without the reader. A cell is a question to a class. It is known if
the reader has a value, several by condition, or nothing, which stands for the root's answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from backend_caps import ANY, Exact, MultipleOf, OneOf
from backend_caps.capability.backend import Backend, EngineClass
from backend_caps.capability.vocabulary import AttentionType
from backend_caps.engines.reading import EngineReading
from backend_caps.engines.source.files import open_tree
from backend_caps.engines.vllm.features import PREDICATES, TYPES
from backend_caps.engines.vllm.read import read_vllm
from backend_caps.resolution.launch import LEVELS
from tests.upstream.tables.rows import FOLDER
from tests.upstream.vllm_classes import CAPABILITIES, DTYPES

pytestmark = [pytest.mark.upstream, pytest.mark.vllm_wheel]

WHEELS = Path(__file__).resolve().parents[2] / ".cache" / "wheels"
HEAD, ROOT, *ROWS = [
    json.loads(line)
    for line in (FOLDER / "vllm-classes-0.32.0.jsonl").read_text("utf-8").splitlines()
]
AS_CAPABILITY = {
    "get_cudagraph_support": "graph_replay",
    "supports_block_size": "page_sizes",
    "supports_compute_capability": "compute_capability",
    "supports_dtype": "dtypes",
    "supports_head_size": "head_sizes",
    "supports_kv_cache_dtype": "kv_cache_dtypes",
    "get_supported_kernel_block_sizes": "kernel_block_sizes",
    TYPES: "attention_types",
    **{predicate: feature for feature, predicate in PREDICATES.items()},
}
"""The capability that answers a question; the others are flags, listed by vLLM's names."""
DEFAULTS: Mapping[str, object] = {"supports_non_causal_dcp": False}
"""What the root answers for a class that states nothing, where it raises for itself."""
NOT_ASKED = {"vllm.models.minimax_m3.nvidia.indexer_msa.MiniMaxM3IndexerMSABackend"}
"""Its module needs CUTLASS to be imported."""
NUM_CELLS = 2724
UNKNOWN = {
    "builder.requires_block_table_width": 2,
    "builder.supports_draft_decode_metadata_update": 1,
    "get_builder_cls": 1,
    "get_cudagraph_support": 5,
    "get_supported_kernel_block_sizes": 12,
    "supports_block_size": 9,
    "supports_compute_capability": 3,
    "supports_device_cpu_query_lens_mismatch": 9,
    "supports_dtype": 2,
    "supports_head_size": 12,
    "supports_kv_cache_dtype": 10,
    "supports_mm_prefix": 7,
    "supports_non_causal": 2,
    "supports_per_head_quant_scales": 5,
    "supports_rswa": 2,
    "supports_sink": 7,
    "supports_sliding_window": 2,
}
"""The cells that the reader leaves open, by question: what they ask depends on running code."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A question to a class, with the answers of all machines."""

    path: str
    question: str
    answers: tuple[object, ...]


def cells() -> Iterator[Cell]:
    """List the table's cells; a class answers as the root does where it has no answer."""
    for row in ROWS:
        for question, answer in {**ROOT, **row}.items():
            match answer:
                case {"by machine": each}:
                    answers = tuple(each.values())
                case _:
                    answers = (answer,)
            raised = any(isinstance(each, dict) for each in answers)
            if question != "class" and not raised:
                yield Cell(row["class"], question, answers)


CELLS = tuple(cells())
BY_CLASS = {path: tuple(own) for path, own in groupby(CELLS, key=lambda cell: cell.path)}


@cache
def reading() -> EngineReading:
    """Read the wheel."""
    wheels = sorted(WHEELS.glob("vllm-0.32.0-*.whl"))
    assert wheels, "no wheel of vllm 0.32.0 in .cache/wheels; fetch it: make vllm"
    return read_vllm(open_tree("vllm", wheels[0]))


@cache
def read_classes() -> Mapping[str, tuple[Backend, EngineClass]]:
    """Map the path of each class that is read to its record."""
    own = ((each, each.engine_class) for each in reading().backends)
    return {made.path: (backend, made) for backend, made in own if made is not None}


def _passing(names: Sequence[object], test: Callable[[Any], bool]) -> object:
    """Write which of some arguments pass, as the table has it."""
    found = [name for name in names if test(name)]
    return found if 0 < len(found) < len(names) else ("all" if found else "none")


def _written(question: str, value: Any) -> object:
    """Write a value that is read as the table has it."""
    match question:
        case "get_cudagraph_support":
            return next(name for name, level in LEVELS.items() if level == value)
        case "supports_head_size" | "supports_block_size":
            return _passing(HEAD["sizes"], lambda size: value is ANY or size in value)
        case "supports_compute_capability":
            return [
                f"{major}.{minor}"
                for major, minor in CAPABILITIES
                if value is ANY or any((major, minor) in window for window in value)
            ]
        case "get_supported_kernel_block_sizes":
            return _blocks(value)
        case _ if question == TYPES:
            taken = {each.value for each in value}
            return _passing([each.value for each in AttentionType], taken.__contains__)
        case "supports_dtype":
            return _passing(DTYPES, lambda name: value is ANY or name in value)
        case "supports_kv_cache_dtype":
            return "all" if value is ANY else sorted(value)
    return list(value) if isinstance(value, tuple) else value


def _blocks(sizes: object) -> object:
    match sizes:
        case Exact(exact=size):
            return [size]
        case MultipleOf(multiple_of=base):
            return [f"multiple of {base}"]
        case OneOf(one_of=several):
            return sorted(several)
    return sizes


def _given(question: str, answer: Any) -> object:
    """Write an answer of the table so that a value that is read can equal it."""
    if question == "supports_compute_capability" and isinstance(answer, str):
        names = [f"{major}.{minor}" for major, minor in CAPABILITIES]
        return names if answer == "all" else []
    if question == "supports_kv_cache_dtype" and isinstance(answer, list):
        return sorted(set(answer) - {"auto"})  # the model's own dtype is no dtype by itself
    return answer


def _values(cell: Cell) -> list[object] | None:
    """List the values that are read for a cell, one for each condition; None if it is unknown."""
    backend, made = read_classes()[cell.path]
    capability = AS_CAPABILITY.get(cell.question)
    name = capability or cell.question.removeprefix("builder.")
    read = (made.readings if capability else made.attributes).get(name)
    if read is None or "states nothing; the root" in read.words:
        return [_given(cell.question, DEFAULTS.get(cell.question, ROOT[cell.question]))]
    if read.value is not None or read.words.endswith(("= None", "returns None")):
        return [_written(cell.question, read.value)]
    assert backend.declaration is not None
    stated = [each.capabilities.stated() for each in backend.declaration.conditions]
    stated.append(backend.declaration.capabilities.stated())
    values = [each[capability] for each in stated if capability in each] if capability else []
    return [_written(cell.question, each) for each in values] or None


def test_every_class_is_in_the_table() -> None:
    """The table has the root, and each class that is read but one that cannot be imported."""
    assert ROOT["class"] == "vllm.v1.attention.backend.AttentionBackend"
    assert {row["class"] for row in ROWS} == read_classes().keys() - NOT_ASKED


@pytest.mark.parametrize("path", sorted(BY_CLASS), ids=lambda path: path.removeprefix("vllm."))
def test_class_is_read_as_it_answers(path: str) -> None:
    """Each answer of a class is the value that is read, or one of those that a condition gives."""
    known = [(cell, values) for cell in BY_CLASS[path] if (values := _values(cell)) is not None]

    wrong = {
        cell.question: (values, cell.answers)
        for cell, values in known
        if not all(_given(cell.question, each) in values for each in cell.answers)
    }

    assert known
    assert wrong == {}


def test_few_cells_are_unknown() -> None:
    """Of all cells the reader does not know those alone that only running code decides."""
    unknown = Counter(cell.question for cell in CELLS if _values(cell) is None)

    assert len(CELLS) == NUM_CELLS
    assert unknown == UNKNOWN
