"""Every wait is needed: a run shows that it is gone. `make races` searches anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.races.cases import Case
from tests.races.mutant_search import programs_of, read_catches
from tests.races.mutants import MUTANTS
from tests.races.mutated_sample import Sample
from tests.races.mutation import Kind, Mutant, StaleMutantError, mutated, mutated_code
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


def test_kept_runs_are_of_programs_that_the_search_tries() -> None:
    """A mutant's file has the programs whose runs show it, so that a search finds them anew."""
    kept = {name: own.first.case.program for name, own in read_catches().items() if own.first}

    assert [own.name for own in MUTANTS if kept[own.name] not in programs_of(own)] == []


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
    assert run_case(Case.parse(line), folder) == ()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_changes_code_that_is_there(mutant: Mutant) -> None:
    """What a mutant takes away is in the code exactly once."""
    assert mutated_code(mutant).co_qualname == mutant.function


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
    assert read_catches()[mutant.name].by_effect is not None


def test_page_has_the_table() -> None:
    """`mutants.md` names every mutant, and what shows it."""
    page = (ROOT / "docs/reference/mutants.md").read_text("utf-8")

    assert mutants_table() in page


def test_mutants_have_names_of_their_own() -> None:
    """No two mutants share a name."""
    names = [mutant.name for mutant in MUTANTS]

    assert len(set(names)) == len(names)


def sample_mutant(function: str, source: str, replacement: str = "pass") -> Mutant:
    """Change the sample."""
    return Mutant(
        name="sample",
        kind=Kind.WAIT,
        file="tests/races/mutated_sample.py",
        function=f"Sample.{function}",
        source=source,
        replacement=replacement,
        protects="nothing",
    )


@pytest.mark.parametrize(
    ("source", "replacement", "said"),
    [
        pytest.param('self.said.append("one")', "pass", ["three", "three"], id="statement"),
        pytest.param(
            'self.said.append("two")', "pass", ["one", "three", "three"], id="only statement"
        ),
        pytest.param('"two"', '"four"', ["one", "four", "three", "three"], id="expression"),
        pytest.param(
            'self.said.append("three"); self.said.append("three")',
            "pass",
            ["one", "two"],
            id="several statements",
        ),
    ],
)
def test_mutant_replaces(source: str, replacement: str, said: list[str]) -> None:
    """Statements, rows of them and expressions are replaced."""
    sample = Sample()

    with mutated(sample_mutant("say", source, replacement)):
        sample.say()

    assert sample.said == said


def test_mutant_replaces_an_argument_of_a_decorated_function() -> None:
    """A keyword argument is replaced, in the function that a decorator wraps."""
    with mutated(sample_mutant("total", "start=3", "start=4")):
        total = Sample().total()

    assert total == 34


def test_mutant_replaces_what_a_property_returns() -> None:
    """A property's own function is changed."""
    with mutated(sample_mutant("number", "5", "6")):
        number = Sample().number

    assert number == 6


def test_mutant_is_taken_back() -> None:
    """After an error too, the function is what it was."""
    sample = Sample()

    with pytest.raises(KeyError), mutated(sample_mutant("say", '"one"', '"four"')):
        raise KeyError

    sample.say()
    assert sample.said == ["one", "two", "three", "three"]


@pytest.mark.parametrize(
    ("source", "num_found"),
    [
        pytest.param('self.said.append("five")', 0, id="gone"),
        pytest.param('self.said.append("three")', 2, id="twice"),
    ],
)
def test_stale_mutant_is_refused(source: str, num_found: int) -> None:
    """Code that is not there exactly once is an error, which says how often it is there."""
    change = mutated(sample_mutant("say", source))

    with pytest.raises(StaleMutantError, match=f"which has it {num_found} times; exactly one"):
        change.__enter__()
