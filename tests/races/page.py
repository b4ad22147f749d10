"""The tables of `docs/reference/mutants.md`."""

from __future__ import annotations

import ast
import inspect
from enum import Enum
from itertools import pairwise

from docs.tools.markdown import table
from tests.hops import BREAKS
from tests.races.cases import Fault, Program
from tests.races.mutant_search import Catch, read_catches
from tests.races.mutants import MUTANTS
from tests.races.mutation import Mutant

_COLUMNS = ("mutant", "takes away", "where", "what it protects", "wrong by", "race by")


def mutants_table() -> str:
    """Give each mutant a row: what it takes away, and what shows it."""
    catches = read_catches()
    rows = [
        (*_cells(own), _shown(catches[own.name].by_effect), _shown(catches[own.name].by_sanitizer))
        for own in MUTANTS
    ]
    return table(_COLUMNS, rows)


def hops_table() -> str:
    """Give each break on the way from an entry point to a step a row."""
    rows = [
        (
            own.hop,
            f"[`{own.file}`](../../backend_caps/{own.file})",
            f"`{own.line}`",
            f"`{own.broken}`",
            f"`{own.test.rpartition('::')[2]}`",
        )
        for own in BREAKS
    ]
    return table(("hop", "file", "line", "broken", "test that fails"), rows)


def programs_table() -> str:
    """Give each program with what it is."""
    return table(("program", "what is run"), _members(Program))


def faults_table() -> str:
    """Give each fault with what it means."""
    return table(("fault", "what it means"), _members(Fault))


def _cells(mutant: Mutant) -> tuple[str, str, str, str]:
    where = f"[`{mutant.function}`](../../{mutant.file})"
    return mutant.name, mutant.kind.value, where, mutant.protects


def _shown(catch: Catch | None) -> str:
    return "" if catch is None else f"{catch.fault.value}: `{catch.case}`"


def _members(kind: type[Enum]) -> list[tuple[str, str]]:
    """List an enum's values with the docstrings below its members."""
    (owner,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(owner, ast.ClassDef), "an enum is a class"
    told = {
        name: text
        for member, below in pairwise(owner.body)
        for name, text in _documented(member, below)
    }
    return [(f"`{member.value}`", told[member.name]) for member in kind]


def _documented(member: ast.stmt, below: ast.stmt) -> list[tuple[str, str]]:
    match member, below:
        case (
            ast.Assign(targets=[ast.Name(id=name)]),
            ast.Expr(value=ast.Constant(value=str(text))),
        ):
            return [(name, text)]
    return []
