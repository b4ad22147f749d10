from __future__ import annotations

import ast
from pathlib import Path

import pytest

from backend_caps import Origin, Rule, RuleSet
from backend_caps.capability.facts import Truth
from backend_caps.engines.sglang.conditions import can_hold, given_of, read_rules
from backend_caps.engines.source.index import Index
from tests.unit.engines.sglang.building import DECIDES, DECISION, index_of, read_class
from tests.unit.engines.tables import table

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
    """Where nothing can be read of what the engine forces, the copy stays on, and is reported."""
    index = index_of(files)

    assert _unknown(index).given.expression == "nothing is known of what the engine forces"
    messages = [each.message for each in index.problems if each.code == "engine-anchor-missing"]
    assert messages[0] == (
        f"sglang 0.5.13 has no decide_needs_cpu_seq_lens() in {DECIDES}, "
        "where known versions have it."
    )


@table("sglang_rules", "missing_join_is_a_problem")
def test_missing_join_is_a_problem(join: str) -> None:
    """A function that does not ask the backends as known versions do is reported."""
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

    assert (rules.name, rules.unchecked_for) == ("sglang-0.5.13", name)
    assert str(rules) == f"sglang-0.5.13, which nobody checked with {name}"
    assert (rules.algorithms, _names(rules)) == (
        frozenset(),
        [rule.name for rule in RuleSet.builtin("sglang-0.5.13").rules],
    )
    assert [problem.message for problem in index.problems] == [
        f"{words} not a version that the reader was checked with (0.5.13, 0.5.23)."
    ]


def test_vanished_rule_of_a_known_version_is_a_problem() -> None:
    """A rule that the version is known to have and its source has not is reported."""
    index = _index(_deciding("    if args.enable_two_batch_overlap:\n        return True\n" + JOIN))

    rules = read_rules(index)

    assert _names(rules) == ["two-batch-overlap", ENFORCED]
    assert [problem.message for problem in index.problems] == [
        (
            f"sglang 0.5.13 has no rule 'piecewise-cuda-graph' in {DECIDES}, "
            "where known versions have it."
        )
    ]


def test_rule_that_is_stated_twice_is_there_once() -> None:
    """Two answers under one condition are one rule."""
    twice = "    if args.enable_two_batch_overlap:\n        return True\n" * 2

    assert _names(read_rules(_index(_deciding(twice + JOIN)))).count("two-batch-overlap") == 1


def _guards(*texts: str) -> list[ast.expr]:
    return [ast.parse(text, mode="eval").body for text in texts]


@table("sglang_conditions", "condition_is_written_in_our_vocabulary")
def test_condition_is_written_in_our_vocabulary(guard: str, given: str) -> None:
    """What flags and facts decide is asked of them, the rest keeps the source's words."""
    assert str(given_of(_guards(guard))) == given


def test_no_guard_is_no_condition() -> None:
    """What always runs is under no condition."""
    assert given_of([]) is None


@pytest.mark.parametrize(
    ("guards", "given"),
    [
        (["not is_npu()", "not is_cpu()", "is_xpu()"], "device = xpu"),
        (["is_hip()", "_is_hip"], "rocm on"),
    ],
    ids=["sets are intersected", "equal values are one"],
)
def test_two_conditions_on_one_value_require_both(guards: list[str], given: str) -> None:
    """Guards on one flag or fact are joined to the values that satisfy both."""
    assert str(given_of(_guards(*guards))) == given


@table("sglang_conditions", "contradiction_stays_open_in_words")
def test_contradiction_stays_open_in_words(first: str, second: str) -> None:
    """A guard that contradicts the ones before it is never lost: its words stay."""
    given = given_of(_guards(first, second))

    assert given is not None
    assert given.expression == second


@table("sglang_conditions", "guards_that_contradict_each_other_cannot_hold")
def test_guards_that_contradict_each_other_cannot_hold(guards: list[str], answer: bool) -> None:
    """Only what the platform, which stays the same, contradicts is ruled out."""
    assert can_hold(_guards(*guards)) is answer


TWO = "class Two(AttentionBackend):\n    "
IN_INIT = "class Two(AttentionBackend):\n    def __init__(self, runner, x):\n        "


@table("sglang_backend_constants", "constant_condition_is_no_condition")
def test_constant_condition_is_no_condition(tmp_path: Path, body: str, value: str) -> None:
    """What a constant lets run always runs, and what it keeps from running is not there."""
    read = read_class(tmp_path, body)

    assert (read.needs.origin, read.needs.value) == (Origin.DECLARED, value)
    assert read.cases == []


def test_value_that_a_property_takes_is_undeclared(tmp_path: Path) -> None:
    """What a property of a base is given is not what it answers."""
    read = read_class(
        tmp_path,
        """
        class Base(AttentionBackend):
            @property
            def needs_cpu_seq_lens(self):
                return self.reads

            @needs_cpu_seq_lens.setter
            def needs_cpu_seq_lens(self, value):
                self.reads = True

        class Two(Base):
            def __init__(self):
                self.needs_cpu_seq_lens = False
        """,
    )

    assert read.needs.origin is Origin.UNDECLARED
    assert read.needs.words == ("needs_cpu_seq_lens = False, and Base has a property of that name")
    assert read.declaration.capabilities.stated() == {}


@table("sglang_backend_constants", "words_of_a_method_are_what_it_returns")
def test_words_of_a_method_are_what_it_returns(tmp_path: Path, body: str, words: str) -> None:
    """A flag that is a method is reported by its answers, each with the conditions before it."""
    read = read_class(tmp_path, TWO + f"def support_triton(self):\n        {body}")

    assert read.engine_class.attributes["support_triton"].words == words


def test_flag_that_something_is_added_to_has_no_value(tmp_path: Path) -> None:
    """An operator that is not followed leaves the value open."""
    read = read_class(tmp_path, IN_INIT + "self.draws_tails = 5\n        self.draws_tails += 1")

    told = read.engine_class.attributes["draws_tails"]
    assert (told.origin, told.value) == (Origin.CONDITIONAL, None)


@table("sglang_backend_constants", "longest_context_is_known_maybe_or_not")
def test_longest_context_is_known_maybe_or_not(
    tmp_path: Path, body: str, origin: str, conditions: int
) -> None:
    """It is declared where it is always set; otherwise a draft alone is taken to know it."""
    read = read_class(tmp_path, IN_INIT.replace(", x", "") + body)

    known = read.engine_class.readings["max_context_len_known"]
    assert (known.origin.value, len(read.declaration.conditions)) == (origin, conditions)
