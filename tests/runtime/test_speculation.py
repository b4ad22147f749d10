from __future__ import annotations

import pytest

from backend_caps import ServerFlags
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.speculation import SpecSettings, num_candidates

EAGLE = ("--speculative-algorithm", "EAGLE")
NAMES = {
    "algorithm": "--speculative-algorithm",
    "topk": "--speculative-eagle-topk",
    "num_steps": "--speculative-num-steps",
    "num_draft_tokens": "--speculative-num-draft-tokens",
}

OF_A_TREE = "a number from 4 to 11, for 3 steps of 2 candidates,"


def _read(**given: object) -> SpecSettings | None:
    """Read the settings of a server that is given these flags."""
    argv = [word for name, value in given.items() for word in (NAMES[name], str(value))]
    return SpecSettings.from_flags(ServerFlags.from_argv(argv))


def _settings(**given: object) -> SpecSettings:
    settings = _read(**{"algorithm": "EAGLE", **given})
    assert settings is not None, "an algorithm is named"
    return settings


def test_flags_without_an_algorithm_do_not_speculate() -> None:
    """Sizes alone switch nothing on."""
    assert _read(topk=4, num_steps=2) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, (1, 3, 4), id="nothing"),
        pytest.param({"num_steps": 5}, (1, 5, 6), id="steps of a chain"),
        pytest.param({"num_draft_tokens": 9}, (1, 8, 9), id="tokens of a chain"),
        pytest.param({"num_draft_tokens": 9, "num_steps": 3}, (1, 3, 4), id="a chain's own size"),
        pytest.param({"topk": 4}, (4, 3, 8), id="a large tree"),
        pytest.param({"topk": 2, "num_steps": 1}, (2, 1, 3), id="a tree that has no 8 tokens"),
        pytest.param({"topk": 2, "num_steps": 2, "num_draft_tokens": 7}, (2, 2, 7), id="all of it"),
        pytest.param({"topk": 2, "num_steps": 2, "num_draft_tokens": 3}, (2, 2, 3), id="a path"),
    ],
)
def test_sizes_that_are_not_given_are_chosen(
    given: dict[str, int], expected: tuple[int, int, int]
) -> None:
    """A chain has 3 steps and a token for each and the root; a tree 8 tokens, or all it can."""
    settings = _settings(**given)

    assert (settings.topk, settings.num_steps, settings.num_draft_tokens) == expected


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"algorithm": "MEDUSA"}, "algorithm is 'MEDUSA'; one of EAGLE, EAGLE3, NGRAM, STANDALONE"),
        ({"num_steps": 0}, "num-steps is 0; 1 to 64"),
        ({"num_steps": 65}, "num-steps is 65; 1 to 64"),
        ({"topk": 2, "num_draft_tokens": 3}, f"num-draft-tokens is 3; {OF_A_TREE}"),
        ({"topk": 2, "num_draft_tokens": 12}, f"num-draft-tokens is 12; {OF_A_TREE}"),
    ],
)
def test_flags_that_make_no_tree_are_refused(given: dict[str, object], refusal: str) -> None:
    """What this engine cannot draft is refused by the flag, its value and what it may be."""
    with pytest.raises(EngineError) as refused:
        _settings(**given)

    assert f"--speculative-{refusal} was expected." in str(refused.value)


@pytest.mark.parametrize(("topk", "num_steps", "expected"), [(1, 4, 4), (2, 1, 2), (3, 3, 21)])
def test_candidates_are_those_of_all_steps(topk: int, num_steps: int, expected: int) -> None:
    """The first step drafts K tokens, each other one K for each of K."""
    assert num_candidates(topk, num_steps) == expected


@pytest.mark.parametrize(("name", "expected"), [("EAGLE", 0), ("STANDALONE", 1), ("NGRAM", 0)])
def test_a_small_model_reads_one_token_behind_a_prompt(name: str, expected: int) -> None:
    """The step of a prompt writes behind it where the draft reads the first token at once."""
    assert _settings(algorithm=name).prompt_slots == expected


@pytest.mark.parametrize(
    ("given", "num_slots"),
    [
        pytest.param({"num_steps": 3}, 5, id="what is accepted, read one place on"),
        pytest.param({"topk": 2, "num_steps": 2, "num_draft_tokens": 7}, 7, id="the tree"),
        pytest.param({"topk": 4, "num_steps": 4, "num_draft_tokens": 5}, 13, id="the drafts"),
    ],
)
def test_slots_are_those_of_the_farthest_forward(given: dict[str, int], num_slots: int) -> None:
    """Draft steps, verify and draft-extend write behind a context; the farthest one counts."""
    settings = _settings(**given)

    assert settings.num_slots == num_slots
    assert settings.lookahead == settings.accept_tokens + num_slots
