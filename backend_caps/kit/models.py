"""Small models with random weights: a target, and what drafts for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from backend_caps.runtime.model.random_models import eagle3_of, eagle_of, first_layers, random_llama
from backend_caps.runtime.speculation import Algorithm

_DRAFTED_LAYERS, _LATER_GAIN = 3, 0.2
"""Layers of a target that is drafted for, and how much the later ones add: little, so that drafts
of its first layer are often right, and not always."""
_MAKE_DRAFT: Mapping[Algorithm | None, Callable[[Path, Path], object]] = {
    Algorithm.EAGLE: eagle_of,
    Algorithm.EAGLE3: eagle3_of,
    Algorithm.STANDALONE: first_layers,
}
"""What makes a draft of a target; n-grams need no model."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Compute on one thread in a block: for tensors as small as those of cases, more only wait.

    On two busy cores, two threads took four times as long as one, spinning for one another.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """How large a small target is."""

    vocab_size: int = 512
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    max_position_embeddings: int = 2048
    dtype: torch.dtype = torch.float32
    num_layers: int | None = None
    """None: as few as there can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModels:
    """Folders of a target, and of what drafts for it."""

    target: Path
    draft: Path | None
    """None where nothing drafts, or the drafts come of no model."""


@contextmanager
def small_models(
    algorithm: Algorithm | None, *, seed: int = 0, sizes: ModelSizes | None = None
) -> Iterator[SmallModels]:
    """Make models for as long as a `with` block runs; so small that threads only cost them time.

    Args:
        algorithm: what drafts: a head or a small model, made of the target's first layer; None
            where nothing does.
        seed: of the weights.
        sizes: of the target.
    """
    sizes, is_drafted = sizes or ModelSizes(), algorithm is not None
    with single_threaded(), TemporaryDirectory(prefix="backend-caps-") as folder:
        target, draft = Path(folder) / "target", Path(folder) / "draft"
        random_llama(
            target,
            seed=seed,
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.num_heads * sizes.head_size,
            num_layers=sizes.num_layers or (_DRAFTED_LAYERS if is_drafted else 2),
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            max_position_embeddings=sizes.max_position_embeddings,
            dtype=sizes.dtype,
            later_gain=_LATER_GAIN if is_drafted else None,
        )
        if (make_draft := _MAKE_DRAFT.get(algorithm)) is not None:
            make_draft(draft, target)
        yield SmallModels(target=target, draft=None if make_draft is None else draft)
