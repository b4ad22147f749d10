"""Code is changed where a mutant says so, and changed back."""

from __future__ import annotations

import pytest

from tests.races.mutated_sample import Sample
from tests.races.mutation import Kind, Mutant, StaleMutantError, mutated

pytestmark = pytest.mark.slow


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
