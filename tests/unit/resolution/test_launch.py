"""What an engine makes of a command line, in a plan."""

from __future__ import annotations

import pytest

from backend_caps.capability.facts import Facts
from backend_caps.capability.vocabulary import AttentionArch
from backend_caps.resolution.launch import Launch, Refusal, Unchecked
from backend_caps.resolution.resolver import resolve
from tests.unit.building import OPTS_OUT, RULES_23, flags, use

_REFUSAL = Refusal(message="fa3 is for SM 9", at="sglang/a.py:3")
_UNCHECKED = Unchecked(message="it may be missing", at="sglang/b.py:4", unless="find_spec('x')")


def _launch(refusal: Refusal | None = None, *unchecked: Unchecked) -> Launch:
    return Launch(
        engine="sglang-9.0",
        machine="H100",
        model="m",
        refusal=refusal,
        unchecked=unchecked,
        flags={"attention_backend": "fa3", "page_size": 64},
        facts={"attention_arch": "mla", "head_size": 128},
    )


@pytest.mark.parametrize(
    ("launch", "starts", "codes"),
    [
        pytest.param(_launch(), True, [], id="accepted"),
        pytest.param(_launch(_REFUSAL), False, ["engine-refuses"], id="refused"),
        pytest.param(
            _launch(None, _UNCHECKED), None, ["engine-start-not-checked"], id="not checked"
        ),
    ],
)
def test_plan_has_the_problems_of_its_launch(
    launch: Launch, starts: bool | None, codes: list[str]
) -> None:
    """A refusal, or what is not known of one, is a problem of the plan."""
    plan = resolve([use("fa3", OPTS_OUT)], flags(), rules=RULES_23, launch=launch)

    assert launch.starts is starts
    assert [each.code for each in plan.problems if each.code.startswith("engine-")] == codes


def test_refusal_is_in_the_engines_words() -> None:
    """The problem has the engine's message, file and line."""
    [problem] = _launch(_REFUSAL).problems()

    assert problem.message == (
        "sglang-9.0 does not start m on H100: fa3 is for SM 9 (sglang/a.py:3)"
    )


def test_final_values_go_before_those_that_were_given() -> None:
    """Flags are the engine's final ones; a fact that is given stays."""
    launch = _launch()

    assert launch.over(flags("--page-size 1 --tp 2")).page_size == 64
    facts = launch.with_facts(Facts(attention_arch=AttentionArch.MHA))
    assert (facts.attention_arch, facts.head_size) == (AttentionArch.MHA, 128)
