from __future__ import annotations

import pickle
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.speculative.contexts import mask_size, tree_mask
from tests.property.strategies import law
from tests.runtime.speculative.drafted import RNGS, Drafts, HostTree, grow, laid_out, tree_of

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
