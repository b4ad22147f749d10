"""A failing run's line, given to the command, runs it again."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.races.replay import main

pytestmark = pytest.mark.slow


def test_replay_of_a_clean_run_says_so() -> None:
    """A run without findings prints one word, and ends well."""
    result = CliRunner().invoke(main, ["mixed", "0", "lazy"])

    assert (result.exit_code, result.output) == (0, "clean\n")


def test_replay_prints_the_trace() -> None:
    """What an engine is asked for stands above what is wrong with the run."""
    result = CliRunner().invoke(main, ["engine", "5", "lazy"])

    assert result.output.startswith("Trace(seed=5, asked=(Asked(prompt=(")


def test_replay_with_a_mutant_prints_its_faults() -> None:
    """A mutant that is asked for is in place, and its findings are printed."""
    line = ["speculative", "0", "lazy", "--mutant", "column copy waits for publish"]

    result = CliRunner().invoke(main, line)

    assert result.exit_code == 1
    assert "wrong value: " in result.output
