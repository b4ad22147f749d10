from __future__ import annotations

import pytest
import torch
from backend_caps_flex_attention.blocks import BLOCK, BlockTable, block_table
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

pytestmark = pytest.mark.slow

_SPAN = st.tuples(st.integers(0, 700), st.integers(0, 700))


@settings(deadline=None, max_examples=100, database=None)
@given(
    spans=st.lists(st.lists(_SPAN, min_size=1, max_size=6), min_size=1, max_size=3),
    repeats=st.sampled_from([1, 30, 128]),
)
def test_block_tables_list_the_blocks_that_are_seen(
    spans: list[list[tuple[int, int]]], repeats: int
) -> None:
    """A block is listed, once and in order, where a token of its block of tokens sees into it."""
    size = min(map(len, spans))
    ranges = torch.tensor([row[:size] for row in spans]).repeat_interleave(repeats, dim=1)
    begins, ends = ranges.unbind(2)

    table = block_table(begins, ends, 768)

    assert _listed(table) == _listed_by_definition(begins, ends, 768)


def test_block_tables_equal_those_of_torch() -> None:
    """For causal tokens behind a prefix, `create_block_mask`, which reads the host, says the same.

    It tells blocks that are seen whole apart, which here are blocks like others.
    """
    ends = torch.arange(300)[None] + 201

    table = block_table(torch.zeros_like(ends), ends, 512)

    mask = create_block_mask(lambda _b, _h, i, j: j < i + 201, 1, None, 300, 512, device="cpu")
    assert mask.full_kv_num_blocks is not None
    assert torch.equal(table.counts, mask.kv_num_blocks + mask.full_kv_num_blocks)


def _listed(table: BlockTable) -> list[list[list[int]]]:
    return [
        [found[:count].tolist() for found, count in zip(row, counts, strict=True)]
        for row, counts in zip(table.indices[:, 0], table.counts[:, 0].tolist(), strict=True)
    ]


def _listed_by_definition(begins: Tensor, ends: Tensor, num_places: int) -> list[list[list[int]]]:
    places = torch.arange(num_places)
    seen = (places >= begins[..., None]) & (places < ends[..., None])
    return [
        [
            [number for number, block in enumerate(some.any(0).split(BLOCK)) if block.any()]
            for some in row.split(BLOCK)
        ]
        for row in seen
    ]
