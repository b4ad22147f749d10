from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.speculative.tree import visible_nodes
from tests.property.strategies import law
from tests.runtime.speculative.drafted import RNGS, HostTree


@law
@given(
    rng=RNGS,
    sizes=st.tuples(st.integers(1, 10), st.integers(1, 5), st.integers(1, 3)),
    spare_steps=st.integers(0, 2),
)
def test_node_sees_itself_and_what_it_continues(
    rng: random.Random, sizes: tuple[int, int, int], spare_steps: int
) -> None:
    """A node sees the path from the root to it, and more steps than depth change nothing."""
    num_nodes, num_steps, num_trees = sizes
    trees = [HostTree.drawn(rng, num_nodes, num_steps) for _ in range(num_trees)]
    parents = torch.tensor([tree.parents for tree in trees])

    visible = visible_nodes(parents, num_steps + spare_steps)

    assert visible.tolist() == [tree.visible for tree in trees]
