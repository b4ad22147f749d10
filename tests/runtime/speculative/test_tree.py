from __future__ import annotations

import math
import pickle
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.speculative.contexts import mask_size, tree_mask
from backend_caps.runtime.speculative.tree import Candidates, accepted
from tests.property.strategies import law
from tests.runtime.speculative.drafted import (
    RNGS,
    Drafts,
    Grown,
    HostTree,
    any_size,
    grow,
    laid_out,
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


_LONGEST = 12


def _visible(rng: random.Random, batch_size: int, num_queries: int, num_places: int) -> Tensor:
    """Draw what tokens see, without any law that a tree has."""
    count = batch_size * num_queries * num_places
    drawn = torch.tensor([rng.random() < 0.5 for _ in range(count)], dtype=torch.bool)
    return drawn.view(batch_size, num_queries, num_places)


_SIZES = st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 6))


@law
@given(rng=RNGS, sizes=_SIZES, least=st.sampled_from([0, 6]), knows_sum=st.booleans())
def test_mask_has_its_layout(
    rng: random.Random, sizes: tuple[int, int, int], least: int, *, knows_sum: bool
) -> None:
    """A mask is as large as the rows, and without a sum as they can be, with true entries behind.

    A padded request has no row. A buffer is written whole, and memory around it is as it was.
    """
    visible = _visible(rng, *sizes)
    lengths = [rng.randint(least, _LONGEST) for _ in range(sizes[0])]
    total = sum(lengths) if knows_sum else None
    size = mask_size(sizes[0], sizes[1], seq_lens_sum=total, max_context_len=_LONGEST)
    memory = torch.zeros(size + rng.randint(20, 29), dtype=torch.bool)
    seq_lens = torch.tensor(lengths, dtype=torch.int64)

    made, written = (
        tree_mask(visible, seq_lens, seq_lens_sum=total, max_context_len=_LONGEST, buffer=buffer)
        for buffer in (None, memory[10:-10])
    )

    expected = laid_out(visible, lengths)
    assert made.numel() == (len(expected) if knows_sum else sizes[0] * sizes[1] * _LONGEST)
    for mask in (made, written):
        assert mask.tolist() == expected + [True] * (mask.numel() - len(expected))
    assert memory.tolist() == [*[False] * 10, *written.tolist(), *[False] * 10]


@pytest.mark.parametrize(
    ("seq_lens_sum", "size"),
    [
        pytest.param(None, 2 * 3 * 12, id="the most it can be"),
        pytest.param(19, 3 * 19, id="the mirror's sum"),
    ],
)
def test_buffer_that_is_too_small_is_refused(seq_lens_sum: int | None, size: int) -> None:
    """One entry less than the batch's mask can have is refused, by numbers; so many will do."""
    seq_lens, visible = torch.tensor([12, 7]), torch.ones(2, 3, 3, dtype=torch.bool)

    with pytest.raises(EngineError) as refused:
        tree_mask(
            visible,
            seq_lens,
            seq_lens_sum=seq_lens_sum,
            max_context_len=12,
            buffer=torch.zeros(size - 1, dtype=torch.bool),
        )

    assert refused.value.code == "tree-mask-buffer"
    assert f"{size - 1} entries; {size} were expected" in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)  # noqa: S301 - ours


def _rows(mask: Tensor, num_queries: int, length: int) -> list[list[bool]]:
    rows: list[list[bool]] = mask.view(num_queries, length).tolist()
    return rows


def test_verify_sees_the_context_and_its_path() -> None:
    """A node of a verified tree sees all before the tree, and its own path."""
    tree = tree_of([HostTree(tokens=[5, 1, 2, 3], parents=[0, 0, 0, 2])], 2)

    assert tree.visible is not None
    mask = tree_mask(tree.visible, torch.tensor([6]), seq_lens_sum=6, max_context_len=8)

    assert _rows(mask, 4, 6) == [
        [True, True, True, False, False, False],
        [True, True, True, True, False, False],
        [True, True, True, False, True, False],
        [True, True, True, False, True, True],
    ]


def test_draft_step_sees_the_context_and_its_ancestors() -> None:
    """A beam sees all before the drafts, its ancestors among these, and itself."""
    steps = [[(0.5, 1), (0.25, 2)]], [[(0.5, 3), (0.25, 4)], [(1.0, 5), (0.0, 6)]]
    _, (first, second) = grow([Drafts(topk=2, steps=[*steps, steps[1]])])

    masks = [
        tree_mask(beams.ancestors, torch.tensor([length]), seq_lens_sum=length, max_context_len=8)
        for beams, length in ((first, 3), (second, 5))
        if beams.ancestors is not None
    ]

    assert _rows(masks[0], 2, 3) == [[True, True, False], [True, False, True]]
    assert _rows(masks[1], 2, 5) == [
        [True, True, False, True, False],
        [True, False, True, False, True],
    ]
