"""What a reader of an engine's source finds: the rows of the tables that the reader is held to.

The tables were written by reading the source, never by running the reader.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Literal

Said = Literal["declared", "inherited", "conditional", "undeclared"]


@dataclass(frozen=True, kw_only=True)
class Needs:
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


UNDECLARED = Needs(said="undeclared")


@dataclass(frozen=True, kw_only=True)
class Class:
    """One class that attends, or wraps or contains ones that do."""

    name: str
    at: str
    """`file:line` of the `class` statement; the file from `sglang/` on."""
    needs: Needs = UNDECLARED
    registered_as: tuple[str, ...] = ()
    """Names of `--attention-backend` for which the engine makes this class, at least sometimes."""
    draft_decode_of: tuple[str, ...] = ()
    """Names for which the draft's steps run on it."""
    draft_extend_of: tuple[str, ...] = ()
    """Names for which draft-extend runs on it."""
    max_context_len: Literal["yes", "maybe", "no"] = "no"
    """Whether an instance has `max_context_len`: maybe, where it can come out as None."""
    shared_reads_end: dict[str, str] = field(default_factory=dict)
    """By phase, where an override of `shared_read_ends` answers with a constant; what it
    delegates, or answers by a condition, is `"depends"`."""
    flags: dict[str, object] = field(default_factory=dict)
    """Graph-related flags that the class body sets itself."""


def same_condition(one: str, other: str) -> bool:
    """Tell whether two conditions are the same expression, spaces and brackets aside."""
    return ast.unparse(ast.parse(one, mode="eval")) == ast.unparse(ast.parse(other, mode="eval"))
