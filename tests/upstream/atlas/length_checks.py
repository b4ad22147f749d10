"""Checks what a cell of the atlas says of the lengths that a backend of vLLM reads on the host."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.upstream.atlas.checks import (
    NOT_KNOWN,
    RIGHT,
    WRONG,
    Cell,
    Result,
    is_at,
    parts_of,
    statement_at,
    worst,
)
from tests.upstream.atlas.live_classes import LiveClass, Scope, World

_EXACT = frozenset(
    ["seq_lens_cpu", "_seq_lens_cpu", "num_computed_tokens_cpu", "_num_computed_tokens_cpu"]
)
_BOUND = "seq_lens_cpu_upper_bound"
_COPIES = frozenset({"cpu", "item", "tolist", "numpy"})
_LENGTHS = re.compile(r"\b(seq_lens|compute_num_computed_tokens|num_computed_tokens|block_nums)\b")


def check_longest(world: World, cell: Cell) -> Result:
    """Check that the line of the longest length binds it, in the batch's metadata."""
    found = statement_at(world, cell["declared_at"])
    is_there = found is not None and ast.unparse(found[0]).startswith("max_seq_len: int")
    if not is_there:
        return Result(WRONG, f"{cell['declared_at']} is no field max_seq_len")
    text = (found or (None, ""))[1]
    line = int(cell["declared_at"].rpartition(":")[2])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0):
            is_it = node.name == "CommonAttentionMetadata"
            return Result(RIGHT) if is_it else Result(WRONG, f"{node.name} has it")
    return Result(WRONG, "no class holds it")


def check_lengths(world: World, path: str, cell: Cell) -> Result:
    """Check what the methods that a builder's `build` calls read of the lengths on the host."""
    if cell["origin"] == "not-known":
        return Result(NOT_KNOWN, "the atlas does not know either")
    builders = list(parts_of(world.find(path), "host_seq_lens"))
    if not builders:
        return Result(NOT_KNOWN, "no builder is found")
    reads = {kind for builder in builders for kind in _reads(builder)}
    if cell["value"] == "none":
        why = f"it or a function it calls names {sorted(reads)}"
        return worst([_at_builder(builders, cell), Result(NOT_KNOWN if reads else RIGHT, why)])
    found = statement_at(world, cell["declared_at"])
    line = int(cell["declared_at"].rpartition(":")[2])
    here = set(_kinds(found[0], line if hasattr(found[0], "body") else None)) if found else set()
    if cell["value"] not in here:
        return Result(WRONG, f"{cell['declared_at']} reads {sorted(here)}")
    if cell["value"] not in reads:
        return Result(NOT_KNOWN, f"only {sorted(reads)} is reached from build")
    if cell["value"] == "upper_bound" and "exact" in reads:
        return Result(NOT_KNOWN, "it or a function it calls names exact lengths too")
    return Result(RIGHT)


def _at_builder(builders: list[LiveClass], cell: Cell) -> Result:
    """Check that the line named is that of a builder, or of the method that it is asked by."""
    place = cell["declared_at"]
    places = {f"{each.scope_.path}:{each.node_.lineno}" for each in builders}
    owners = (each for builder in builders for each in builder.mro_)
    if place in places or any(is_at(each, "build", place) for each in owners):
        return Result(RIGHT)
    return Result(WRONG, f"{place} is not among {sorted(places)}")


def _kinds(node: ast.AST, line: int | None = None) -> Iterator[str]:
    """Yield what a piece of source, or what stands at one of its lines, reads of the lengths."""
    for each in ast.walk(node):
        if line is not None and not _spans(each, line):
            continue
        match each:
            case ast.Attribute(attr=name, ctx=ast.Load()) if name == _BOUND:
                yield "upper_bound"
            case ast.Attribute(attr=name, ctx=ast.Load()) if name in _EXACT:
                yield "exact"
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if (
                name in _COPIES or (name == "to" and "cpu" in ast.unparse(each))
            ) and _LENGTHS.search(ast.unparse(value)):
                yield "exact"


def _spans(node: ast.AST, line: int) -> bool:
    return isinstance(node, ast.expr) and node.lineno <= line <= (node.end_lineno or 0)


def _reads(builder: LiveClass) -> set[str]:
    """Return what `build` of a builder, and the functions that it calls, read."""
    todo = _methods(builder, "build")
    done: set[int] = set()
    kinds: set[str] = set()
    while todo:
        scope, function = todo.pop()
        if id(function) in done or not isinstance(function, ast.FunctionDef):
            continue
        done.add(id(function))
        kinds |= set(_kinds(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute):
                todo += _methods(builder, node.attr)
            elif isinstance(node, ast.Name):
                todo += _definitions(scope, node.id)
    return kinds


def _methods(live: LiveClass, name: str) -> list[tuple[Scope, ast.stmt]]:
    return [(c.scope_, each) for c in live.mro_ for each in c.body_.bound.get(name, ())]


def _definitions(scope: Scope, name: str) -> Iterator[tuple[Scope, ast.stmt]]:
    """Yield the functions that a name stands for, through imports."""
    for statement in scope.bound.get(name, ()):
        if isinstance(statement, ast.ImportFrom):
            home = scope.world.module(scope.source(statement))
            if home is not None and home is not scope:
                yield from _definitions(home, name)
        else:
            yield scope, statement
