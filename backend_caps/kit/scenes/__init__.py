"""Scenes: batches over a paged cache, with the attention that their definition gives.

What an author of a backend tests numerics with, on any device. `reference_attention` says what a
backend has to return, and whatever no request owns is poison, so that a read too many shows.
"""

from backend_caps.kit.scenes.making import (
    DECODE,
    PREFILL,
    PREFIXED,
    VERIFY,
    Requests,
    Setting,
    batch_of,
    causal,
    layer_of,
    padded,
    scene,
    sharing,
)
from backend_caps.kit.scenes.reference import reference_attention
from backend_caps.kit.scenes.scene import Pools, Scene, flat_mask, moved
from backend_caps.kit.scenes.trees import (
    CHAIN,
    COMB,
    FORK,
    GROVE,
    STAR,
    Tree,
    beams,
    dice_of,
    masked_scene,
    random_tree,
    tree_scene,
    visible_nodes,
    with_mask,
)

__all__ = [
    "CHAIN",
    "COMB",
    "DECODE",
    "FORK",
    "GROVE",
    "PREFILL",
    "PREFIXED",
    "STAR",
    "VERIFY",
    "Pools",
    "Requests",
    "Scene",
    "Setting",
    "Tree",
    "batch_of",
    "beams",
    "causal",
    "dice_of",
    "flat_mask",
    "layer_of",
    "masked_scene",
    "moved",
    "padded",
    "random_tree",
    "reference_attention",
    "scene",
    "sharing",
    "tree_scene",
    "visible_nodes",
    "with_mask",
]
