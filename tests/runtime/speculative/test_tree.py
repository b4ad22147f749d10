from __future__ import annotations

import math
import random
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.speculative.tree import Candidates, accepted
from tests.property.strategies import law
from tests.runtime.speculative.drafted import (
    RNGS,
    Drafts,
    Grown,
    HostTree,
    any_size,
    grow,
    tree_from,
    tree_of,
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
def test_tree_is_made_of_the_best(rng: random.Random, topk: int, num_steps: int) -> None:
    """The tree has the best candidates in their order, each behind its parent."""
    batch, size = _batch(rng, topk, num_steps), any_size(rng, topk, num_steps)

    tree = tree_from(batch, size)

    expected = [Grown.of(drafts).tree(root, size) for root, drafts in enumerate(batch)]
    assert tree.tokens.tolist() == [own.tokens for own in expected]
    assert tree.parents.tolist() == [own.parents for own in expected]
    assert tree.depths.tolist() == [own.depths for own in expected]


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


_STEPS = st.integers(1, 5)


def _predicted(rng: random.Random, tree: HostTree, odds: float) -> list[int]:
    """Draw what the target says at each node: with some odds what a child of it has."""
    said = []
    for node in range(len(tree.tokens)):
        children = [n for n in range(1, len(tree.tokens)) if tree.parents[n] == node]
        agrees = bool(children) and rng.random() < odds
        said.append(tree.tokens[rng.choice(children)] if agrees else rng.randrange(9))
    return said


def _repeated(path: list[int], length: int) -> list[int]:
    return [*path, *[path[-1]] * (length - len(path))]


@law
@given(rng=RNGS, num_steps=_STEPS, is_chain=st.booleans(), odds=st.sampled_from([0.0, 0.8, 1.0]))
def test_accepted_is_the_walk_from_the_root(
    rng: random.Random, num_steps: int, odds: float, *, is_chain: bool
) -> None:
    """From the root on, the child that the target named comes next, until it named none.

    A step's tokens are what the target named at these nodes; the last one is the bonus.
    """
    trees = [
        HostTree.chain(rng, num_steps + 1) if is_chain else HostTree.drawn(rng, 10, num_steps)
        for _ in range(3)
    ]
    predicted = [_predicted(rng, tree, odds) for tree in trees]

    result = accepted(
        tree_of(trees, num_steps, is_chain=is_chain), torch.tensor(predicted), num_steps=num_steps
    )

    paths = [tree.accepted(said) for tree, said in zip(trees, predicted, strict=True)]
    assert result.accept_lens.tolist() == [len(path) for path in paths]
    assert result.path.tolist() == [_repeated(path, num_steps + 1) for path in paths]
    named = [[said[node] for node in path] for said, path in zip(predicted, paths, strict=True)]
    assert result.tokens.tolist() == [_repeated(own, num_steps + 1) for own in named]
    assert result.bonus_tokens.tolist() == [own[-1] for own in named]
