"""What a reader of an engine's source finds: the tables that our readers are held to.

The tables were written by reading the source, never by running a reader.
"""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, TypeAdapter

FOLDER = Path(__file__).parent
Said = Literal["declared", "inherited", "conditional", "undeclared"]


class _Model(BaseModel, frozen=True, extra="forbid"):
    """A table, or a part of one."""


class Needs(_Model):
    """What the source says of `needs_cpu_seq_lens` for one class."""

    said: Said
    value: bool | None = None
    """None where it is conditional or undeclared."""
    at: str | None = None
    """`file:line` of the statement that decides; None where undeclared."""
    base: str | None = None
    """The class it is inherited from."""
    cases: tuple[tuple[bool, str], ...] = ()
    """Of a conditional one: each value that a condition gives, and the condition."""


class Class(_Model):
    """One class of SGLang that attends, or wraps or contains ones that do."""

    name: str
    at: str
    """`file:line` of the `class` statement; the file from `sglang/` on."""
    needs: Needs = Needs(said="undeclared")
    registered_as: tuple[str, ...] = ()
    """Names of `--attention-backend` for which the engine makes this class, at least sometimes."""
    draft_decode_of: tuple[str, ...] = ()
    """Names for which the draft's steps run on it."""
    draft_extend_of: tuple[str, ...] = ()
    """Names for which draft-extend runs on it."""
    max_context_len: Literal["yes", "maybe", "no"] = "no"
    """Whether an instance has `max_context_len`: maybe, where it can come out as None."""
    shared_reads_end: dict[str, str] = {}
    """By phase, where an override of `shared_read_ends` answers with a constant; what it
    delegates, or answers by a condition, is `"depends"`."""
    flags: dict[str, object] = {}
    """Graph-related flags that the class body sets itself."""


class SGLangTable(_Model):
    """One version of SGLang."""

    rules: tuple[str, ...]
    """What forces the mirror in `decide_needs_cpu_seq_lens`."""
    choices: frozenset[str]
    """The values of `--attention-backend`."""
    registered: frozenset[str]
    """The names given to `register_attention_backend`."""
    classes: tuple[Class, ...]


class Graph(_Model):
    """What the source says of CUDA-graph support for one metadata builder."""

    said: Said
    level: str | None = None
    """Member of `AttentionCGSupport`; None where it is conditional or undeclared."""
    at: str | None = None
    """`file:line` of the statement that decides, or of the `def`; None where undeclared."""
    base: str | None = None
    """The builder it is inherited from."""
    cases: tuple[tuple[str, str], ...] = ()
    """Of a conditional one: each level and its condition, in the order of the source.

    The first that holds decides; "otherwise" is what is left. A nested return has the tests it
    stands under, joined by `and`. Empty where a return calls another function.
    """


class Row(_Model):
    """One member of one of vLLM's registries of attention backends."""

    name: str
    registry: Literal["attention", "mamba"]
    path: str | None = None
    """The dotted class path; None where the member's value is None or empty."""
    at: str | None = None
    """`file:line` of the `class` statement; None where there is no such class."""
    builder: str | None = None
    graph: Graph = Graph(said="undeclared")
    dtypes: tuple[str, ...] | None = None
    """None here and in the next four: only the root's default."""
    kv_cache_dtypes: tuple[str, ...] | None = None
    head_sizes: tuple[int, ...] | str | None = None
    block_sizes: tuple[int | str, ...] | str | None = None
    compute_capability: str | None = None
    is_mla: bool | Literal["depends"] = False
    is_sparse: bool | Literal["depends"] = False
    is_ssm: bool | Literal["depends"] = False
    inherits: tuple[str, ...] = ()
    """Of the five: those that a parent other than the root states, not the class itself."""


def sglang_table(version: str) -> SGLangTable:
    """Load the table of a version of SGLang."""
    return SGLangTable.model_validate(_table(f"sglang-{version}"))


def vllm_rows(version: str) -> tuple[Row, ...]:
    """Load the table of a version of vLLM: a row for each name."""
    return TypeAdapter(tuple[Row, ...]).validate_python(_table(f"vllm-{version}")["rows"])


def _table(name: str) -> dict[str, object]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def same_condition(one: str, other: str) -> bool:
    """Tell whether two conditions are the same expression, spaces and brackets aside."""
    return ast.unparse(ast.parse(one, mode="eval")) == ast.unparse(ast.parse(other, mode="eval"))
