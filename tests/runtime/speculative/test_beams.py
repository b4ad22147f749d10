from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.speculative.tree import Candidates
from tests.property.strategies import law
from tests.runtime.speculative.drafted import (
    RNGS,
    Drafts,
    Grown,
    any_size,
    grow,
    step_of,
    tree_from,
)

_TOPKS, _STEPS = st.integers(1, 4), st.integers(1, 5)


def _batch(rng: random.Random, topk: int, num_steps: int) -> list[Drafts]:
    return [Drafts.drawn(rng, topk, num_steps) for _ in range(rng.randint(1, 3))]


@law
@given(rng=RNGS, topk=_TOPKS, num_steps=_STEPS)
def test_beams_are_the_best_of_their_step(rng: random.Random, topk: int, num_steps: int) -> None:
    """Each step goes on from its best drafts, of equal ones from the first."""
    batch = _batch(rng, topk, num_steps)

    _, forwards = grow(batch)

    expected = [Grown.of(drafts).beams[: num_steps - 1] for drafts in batch]
    assert [[row.tolist() for row in beams.numbers] for beams in forwards] == [
        list(of_step) for of_step in zip(*expected, strict=True)
    ]


@law
@given(rng=RNGS, topk=_TOPKS, num_steps=_STEPS)
def test_beams_have_their_candidates_tokens_and_scores(
    rng: random.Random, topk: int, num_steps: int
) -> None:
    """A beam is a candidate: it has its token, its score and its parent's place."""
    drafts = Drafts.drawn(rng, topk, num_steps)

    _, forwards = grow([drafts])

    grown = Grown.of(drafts)
    for before, numbers, beams in zip([[-1], *grown.beams], grown.beams, forwards, strict=False):
        own = [grown.candidates[number] for number in numbers]
        assert beams.tokens[0].tolist() == [candidate.token for candidate in own]
        assert beams.scores[0].tolist() == [candidate.score for candidate in own]
        assert beams.parents[0].tolist() == [before.index(candidate.parent) for candidate in own]


@law
@given(rng=RNGS, topk=st.integers(2, 4), num_steps=_STEPS)
def test_beams_see_the_drafts_that_they_continue(
    rng: random.Random, topk: int, num_steps: int
) -> None:
    """Of the tokens that forwards took, a beam sees those on its path, and no other."""
    drafts = Drafts.drawn(rng, topk, num_steps)

    _, forwards = grow([drafts])

    grown = Grown.of(drafts)
    for step, beams in enumerate(forwards):
        taken = [number for numbers in grown.beams[: step + 1] for number in numbers]
        paths = [grown.path(number) for number in grown.beams[step]]
        assert beams.ancestors is not None
        assert beams.ancestors[0].tolist() == [[n in path for n in taken] for path in paths]


def test_single_beam_needs_no_ancestors() -> None:
    """With one candidate a step, each continues all before it."""
    _, forwards = grow([Drafts.drawn(random.Random(0), 1, 4)])  # noqa: S311 - a draft

    assert [beams.ancestors for beams in forwards] == [None, None, None]


@law
@given(rng=RNGS, topk=_TOPKS, num_steps=_STEPS)
def test_tree_is_made_of_the_best(rng: random.Random, topk: int, num_steps: int) -> None:
    """The tree has the best candidates in their order, each behind its parent."""
    batch, size = _batch(rng, topk, num_steps), any_size(rng, topk, num_steps)

    tree = tree_from(batch, size)

    expected = [Grown.of(drafts).tree(root, size) for root, drafts in enumerate(batch)]
    assert tree.tokens.tolist() == [own.tokens for own in expected]
    assert tree.parents.tolist() == [own.parents for own in expected]
    assert tree.depths.tolist() == [own.depths for own in expected]


@law
@given(rng=RNGS, topk=st.integers(2, 4), num_steps=_STEPS)
def test_tree_says_what_its_nodes_continue(rng: random.Random, topk: int, num_steps: int) -> None:
    """Each node of the tree sees the path to it."""
    batch, size = _batch(rng, topk, num_steps), any_size(rng, topk, num_steps)

    tree = tree_from(batch, size)

    expected = [Grown.of(drafts).tree(root, size) for root, drafts in enumerate(batch)]
    assert tree.visible is not None
    assert tree.visible.tolist() == [own.visible for own in expected]


def test_chain_says_nothing_of_what_is_seen() -> None:
    """With one candidate a step the tree is a chain."""
    tree = tree_from([Drafts.drawn(random.Random(3), 1, 4)], 5)  # noqa: S311 - a draft

    assert tree.visible is None
    assert tree.parents.tolist() == [[0, 0, 1, 2, 3]]


@law
@given(rng=RNGS, topk=st.integers(2, 4), num_steps=_STEPS, from_step=st.integers(0, 4))
def test_tree_of_no_numbers_is_a_tree(
    rng: random.Random, topk: int, num_steps: int, from_step: int
) -> None:
    """Where a draft model says NaN, as padding may, parents still come before their children."""
    drafts = Drafts.drawn(rng, topk, num_steps)
    nothing = [[[(math.nan, t) for _, t in beam] for beam in step] for step in drafts.steps]
    steps = [*drafts.steps[:from_step], *nothing[from_step:]]

    tree = tree_from([replace(drafts, steps=steps)], num_steps + 1)

    assert bool((tree.parents[:, 1:] < torch.arange(1, num_steps + 1)).all())
    assert torch.equal(tree.depths[:, 1:], tree.depths.gather(1, tree.parents)[:, 1:] + 1)


def test_probabilities_that_rounding_raised_leave_the_tree_whole() -> None:
    """A child whose probability is a rounding above one is not above its parent."""
    candidates = Candidates.start(torch.tensor([[0.5, 0.25]]), torch.tensor([[1, 2]]))
    raised = torch.full((1, 2, 2), 1 + 2.0**-20)

    grown = candidates.grown(candidates.beams(), raised, torch.tensor([[[3, 4], [5, 6]]]))

    assert grown.scores.tolist() == [[0.5, 0.25, 0.5, 0.5, 0.25, 0.25]]


def test_states_of_the_root_go_to_all_beams() -> None:
    """At step 0 every beam goes on from what there is of the root."""
    beams = Candidates.start(*step_of([Drafts.drawn(random.Random(1), 3, 1)], 0)).beams()  # noqa: S311 - a draft
    states = torch.tensor([[[5.0, 6.0]]])

    gathered = beams.gather_parents(states)

    assert gathered.tolist() == [[[5.0, 6.0]] * 3]


def test_states_of_parents_go_to_their_children() -> None:
    """Later on a beam goes on from what its parent's forward left."""
    candidates = Candidates.start(torch.tensor([[0.5, 0.25]]), torch.tensor([[1, 2]]))
    topk_p = torch.tensor([[[0.25, 0.125], [1.0, 0.0]]])
    grown = candidates.grown(candidates.beams(), topk_p, torch.tensor([[[3, 4], [5, 6]]]))

    gathered = grown.beams().gather_parents(torch.tensor([[[10.0], [20.0]]]))

    assert gathered.tolist() == [[[20.0], [10.0]]]


@pytest.mark.parametrize(
    ("topk", "num_draft_tokens", "fault"),
    [
        pytest.param(2, 8, "6 drafts fill no such tree", id="too large"),
        pytest.param(1, 2, "a chain is verified whole", id="part of a chain"),
    ],
)
def test_tree_of_a_wrong_size_is_refused(topk: int, num_draft_tokens: int, fault: str) -> None:
    """Sizes that settings do not give are a fault of the caller's code."""
    batch = [Drafts.drawn(random.Random(2), topk, 2)]  # noqa: S311 - a draft

    with pytest.raises(AssertionError, match=fault):
        tree_from(batch, num_draft_tokens)
