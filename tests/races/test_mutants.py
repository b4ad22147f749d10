"""Every wait is needed: a run shows that it is gone. `make races` searches anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.races.cases import Case
from tests.races.mutant_search import read_catches
from tests.races.mutants import MUTANTS
from tests.races.mutation import Kind, Mutant, mutated_code
from tests.races.page import mutants_table
from tests.races.runs import run_case, run_mutated

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
ORDERING = frozenset(
    {
        "keep_alive",
        "record",
        "record_stream",
        "synchronize",
        "wait",
        "wait_event",
        "wait_stream",
        "barrier",
    }
)
"""Methods that order device work, or keep its memory."""
RENEW = "where traces or code have changed, search anew: make races RACES=--write"
LINES = sorted({str(own.first.case) for own in read_catches().values() if own.first is not None})
"""The runs that show mutants."""


def ordering_calls() -> Iterator[tuple[str, str, str]]:
    """Yield file, function and source of every call that orders device work."""
    for folder in ("relay", "runtime"):
        for path in sorted((ROOT / "backend_caps" / folder).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            for name, node in _named(tree, ""):
                match node:
                    case ast.Call(func=ast.Attribute(attr=attr)) if attr in ORDERING:
                        yield str(path.relative_to(ROOT)), name, ast.unparse(node)


def _named(owner: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node below another one, with the qualified name of its function."""
    for node in ast.iter_child_nodes(owner):
        own = name
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            own = f"{name}.{node.name}".lstrip(".")
        yield own, node
        yield from _named(node, own)


def sources_of(mutant: Mutant) -> set[str]:
    """List the calls in what a mutant takes away."""
    tree = ast.parse(mutant.source)
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_shown(mutant: Mutant, folder: Path) -> None:
    """The run that once showed a mutant shows it again, by the same fault."""
    catch = read_catches()[mutant.name].first
    assert catch is not None

    findings = run_mutated(mutant, catch.case, folder)

    assert catch.fault in {finding.fault for finding in findings}, RENEW


@pytest.mark.parametrize("line", LINES)
def test_run_that_shows_a_mutant_is_clean_without_it(line: str, folder: Path) -> None:
    """The same run of the code as it is shows nothing."""
    findings = run_case(Case.parse(line), folder)

    assert findings == ()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_changes_code_that_is_there(mutant: Mutant) -> None:
    """What a mutant takes away is in the code exactly once."""
    code = mutated_code(mutant)

    assert code.co_qualname == mutant.function


def test_every_call_that_orders_device_work_has_a_mutant() -> None:
    """No wait, record, barrier, keep-alive or synchronize is left out of the table."""
    covered = {
        (mutant.file, mutant.function, source)
        for mutant in MUTANTS
        for source in sources_of(mutant)
    }

    missing = set(ordering_calls()) - covered

    assert missing == set()


@pytest.mark.parametrize(
    "mutant",
    [own for own in MUTANTS if own.kind is Kind.KEEP_ALIVE],
    ids=lambda mutant: mutant.name,
)
def test_missing_keep_alive_is_shown_by_the_allocator(mutant: Mutant) -> None:
    """Memory that is freed too early is a wrong result, where the sanitizer does not look."""
    catch = read_catches()[mutant.name].by_effect

    assert catch is not None


def test_page_has_the_table() -> None:
    """`mutants.md` names every mutant, and what shows it."""
    page = (ROOT / "docs/reference/mutants.md").read_text("utf-8")

    assert mutants_table() in page


def test_mutants_have_names_of_their_own() -> None:
    """No two mutants share a name."""
    names = [mutant.name for mutant in MUTANTS]

    assert len(set(names)) == len(names)
