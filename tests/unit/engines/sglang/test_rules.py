from __future__ import annotations

import pytest

from backend_caps.capability.facts import Truth
from backend_caps.engines.sglang.conditions import read_rules
from backend_caps.engines.source.index import Index
from backend_caps.resolution.rules import Rule, RuleSet
from tests.unit.engines.sglang.building import DECIDES, DECISION, index_of
from tests.unit.engines.tables import table

MIXED = "mixed-chunk-with-speculation"
ENFORCED = "piecewise-cuda-graph-enforced"
JOIN = "    return any(getattr(each, 'needs_cpu_seq_lens', True) for each in backends)\n"


def _index(text: str, version: str | None = "0.5.13") -> Index:
    return index_of({DECIDES: text}, version=version)


def _deciding(body: str) -> str:
    return f"def decide_needs_cpu_seq_lens(args, backends):\n{body}"


def _names(rules: RuleSet) -> list[str]:
    return [rule.name for rule in rules.rules]


@table("sglang_rules", "known_conditions_are_the_built_in_rules")
def test_known_conditions_are_the_built_in_rules(version: str, text: str, names: list[str]) -> None:
    """What the source of a known version forces is what is built in, without a problem."""
    index = _index(text, version)

    rules = read_rules(index)

    assert rules == RuleSet.builtin(f"sglang-{version}")
    assert (_names(rules), index.problems) == (names, ())


def _unknown(index: Index) -> Rule:
    return next(rule for rule in read_rules(index).rules if rule.name.startswith("unknown: "))


@table("sglang_rules", "condition_that_no_rule_knows_is_an_open_rule")
def test_condition_that_no_rule_knows_is_an_open_rule(body: str, words: str) -> None:
    """It forces the copy while it is open, and says in the source's words what decides."""
    rule = _unknown(_index(_deciding(body)))

    assert rule.name == f"unknown: {words}"
    assert rule.given.truth({}) is Truth.UNKNOWN
    assert rule.forces.needs_cpu_seq_lens is True


def test_condition_that_no_rule_knows_is_a_problem() -> None:
    """The problem has the condition and the place of the function."""
    index = _index(
        DECISION.replace("return any", "if args.is_loud:\n        return True\n    return any")
    )

    read_rules(index)

    assert [problem.message for problem in index.problems] == [
        (
            f"sglang 0.5.13 also keeps the copy where args.is_loud ({DECIDES}:2), "
            "and no known rule says so."
        )
    ]


@table("sglang_rules", "missing_function_leaves_everything_open")
def test_missing_function_leaves_everything_open(files: dict[str, str]) -> None:
    """Where nothing can be read of what the engine forces, the copy stays on, and is told."""
    index = index_of(files)

    rule = _unknown(index)

    assert rule.given.expression == "nothing is known of what the engine forces"
    messages = [each.message for each in index.problems if each.code == "engine-anchor-missing"]
    assert messages[0] == (
        f"sglang 0.5.13 has no decide_needs_cpu_seq_lens() in {DECIDES}, "
        "where known versions have it."
    )


@table("sglang_rules", "missing_join_is_a_problem")
def test_missing_join_is_a_problem(join: str) -> None:
    """A function that does not ask the backends as known versions do is told of."""
    index = _index(DECISION[: DECISION.index("    return any")] + join)

    read_rules(index)

    messages = [each.message for each in index.problems if each.code == "engine-anchor-missing"]
    assert messages == [
        (
            "sglang 0.5.13 has no join over the backends' needs_cpu_seq_lens in "
            f"{DECIDES}, where known versions have it."
        )
    ]


@pytest.mark.parametrize(
    ("version", "name", "words"),
    [
        pytest.param("9.9", "sglang-9.9", "sglang 9.9 is", id="a new one"),
        pytest.param(None, "sglang-unknown", "sglang of unknown version is", id="none stated"),
    ],
)
def test_unknown_version_is_a_problem(version: str | None, name: str, words: str) -> None:
    """What is read of it stands, and of its algorithms none is taken to be known."""
    index = _index(DECISION, version)

    rules = read_rules(index)

    assert (rules.name, rules.algorithms, _names(rules)) == (
        name,
        frozenset(),
        ["two-batch-overlap", MIXED, "piecewise-cuda-graph"],
    )
    assert [problem.message for problem in index.problems] == [
        f"{words} not a version that the reader was checked with (0.5.13, 0.5.23)."
    ]


def test_vanished_rule_of_a_known_version_is_a_problem() -> None:
    """A rule that the version is known to have and its source has not is told of."""
    index = _index(_deciding("    if args.enable_two_batch_overlap:\n        return True\n" + JOIN))

    rules = read_rules(index)

    assert _names(rules) == ["two-batch-overlap", ENFORCED, MIXED]
    assert [problem.message for problem in index.problems] == [
        (
            f"sglang 0.5.13 has no rule 'piecewise-cuda-graph' in {DECIDES}, "
            "where known versions have it."
        )
    ]


def test_rule_that_is_stated_twice_is_there_once() -> None:
    """Two answers under one condition are one rule."""
    twice = "    if args.enable_two_batch_overlap:\n        return True\n" * 2

    rules = read_rules(_index(_deciding(twice + JOIN)))

    assert _names(rules).count("two-batch-overlap") == 1
