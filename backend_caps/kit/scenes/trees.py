"""Scenes whose new tokens are trees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from backend_caps.kit.scenes.making import Setting, scene
from backend_caps.kit.scenes.scene import Scene, flat_mask

Tree = Sequence[int]
"""The parent of each node; the root, which comes first, is its own."""

CHAIN: Tree = (0, 0, 1, 2)
"""Each node continues the one before."""
FORK: Tree = (0, 0, 0, 1)
"""Two branches, of which one goes on."""
STAR: Tree = (0, 0, 0, 0)
"""All nodes continue the root."""
COMB: Tree = (0, 0, 0, 2)
"""Two branches, of which the other one goes on."""
GROVE = ((4, FORK), (0, STAR), (18, CHAIN), (7, COMB))
"""Cached tokens and the tree over them, for each request."""


def tree_scene(
    requests: Sequence[tuple[int, Tree]], *, num_spare: int = 0, setting: Setting | None = None
) -> Scene:
    """Make a scene of trees of one size, as in verify; the mask has spare entries behind."""
    return masked_scene(
        [(prefix, visible_nodes(tree)) for prefix, tree in requests],
        num_spare=num_spare,
        setting=setting,
    )


def masked_scene(
    requests: Sequence[tuple[int, Tensor]], *, num_spare: int = 0, setting: Setting | None = None
) -> Scene:
    """Make a scene of cached tokens that all see, and of what else they see, [Q, C] bool.

    The Q new tokens are the last of the C.
    """
    shapes = [(prefix, *seen.shape) for prefix, seen in requests]
    plain = scene(
        [(prefix + context - new, new) for prefix, new, context in shapes],
        uniform=True,
        setting=setting,
    )
    return with_mask(plain, [_after_prefix(*request) for request in requests], num_spare=num_spare)


def with_mask(plain: Scene, visible: Sequence[Tensor], *, num_spare: int = 0) -> Scene:
    """Let the tokens of a uniform scene see what is given, and say so by a tree mask."""
    batch = replace(plain.batch, tree_mask=flat_mask(visible, num_spare))
    return replace(plain, batch=batch, visible=visible)


def visible_nodes(tree: Tree) -> Tensor:
    """Let each node see itself and those that it continues: [N, N] bool."""
    visible = torch.eye(len(tree), dtype=torch.bool)
    for node, parent in enumerate(tree):
        visible[node] |= visible[parent] if parent != node else False
    return visible


def beams(num_beams: int, num_steps: int, dice: random.Random) -> Tensor:
    """Let each beam of the last draft step see itself and one beam of each step before.

    Each step has written its beams' tokens behind those of the step before: [K, S * K] bool.
    """
    seen = torch.eye(num_beams, dtype=torch.bool)
    whole = seen
    for _ in range(num_steps - 1):
        parents = [dice.randrange(num_beams) for _ in range(num_beams)]
        whole = torch.cat([whole[parents], seen], dim=1)
    return whole


def dice_of(seed: int) -> random.Random:
    """Make dice that fall alike for the same seed."""
    return random.Random(seed)  # noqa: S311 - no secrets


def random_tree(num_tokens: int, topk: int, dice: random.Random) -> Tree:
    """Grow a tree of which no node has more than `topk` children."""
    tree = [0]
    for node in range(1, num_tokens):
        tree.append(dice.choice([at for at in range(node) if tree[1:].count(at) < topk]))
    return tree


def _after_prefix(prefix: int, seen: Tensor) -> Tensor:
    return torch.cat([seen.new_ones(len(seen), prefix), seen], dim=1)
