"""Values in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import JsonValue

from backend_caps.report.plans import plan_document
from backend_caps.report.words import plain_words
from backend_caps.resolution.resolver import resolve
from tests.unit.building import OPTS_OUT, RULES_23, flags, use


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not given"),
        ({"unknown": "1 or 64"}, "not known (1 or 64)"),
        ({"backend": "full", "max_bs": None, "bs": [1, 2]}, "backend full, bs 1, 2"),
        ([1, 2, 4, 8, 12, 16, 24, 32, 40], "9 values up to 40"),
        (64, "64"),
    ],
)
def test_argument_of_an_engine_is_short(value: JsonValue, words: str) -> None:
    """Of one with parts, what differs from nothing; of a long list, its end."""
    assert plain_words(value) == words


def test_rules_that_nobody_checked_say_so() -> None:
    """The headline of a plan names the rules, and what they were not checked with."""
    rules = replace(RULES_23, unchecked_for="sglang-0.5.18")
    plan = resolve([use("fa3", OPTS_OUT)], flags(), rules=rules)

    document = plan_document(plan, ())

    assert document.rules == "sglang-0.5.23"
    assert document.rules_words == "sglang-0.5.23, which nobody checked with sglang-0.5.18"
