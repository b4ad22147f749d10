from __future__ import annotations

from pathlib import Path

from backend_caps.capability.provenance import Origin
from tests.unit.engines.sglang.building import read_class
from tests.unit.engines.tables import table

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


def test_default_of_the_root_stands_where_all_else_never_runs(tmp_path: Path) -> None:
    """A class whose only statement never runs has said nothing."""
    read = read_class(tmp_path, TWO + "if False:\n        needs_cpu_seq_lens = False")

    assert read.needs.origin is Origin.UNDECLARED


@table("sglang_backend_constants", "words_of_a_method_are_what_it_returns")
def test_words_of_a_method_are_what_it_returns(tmp_path: Path, body: str, words: str) -> None:
    """A flag that is a method is told by its answers, each with what has not failed before it."""
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
