"""Small models with random weights: a target model, and a draft model for it."""

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
"""Layers of a target with a draft model, and the gain of its later ones: so small that drafts made
by the first layer are often accepted, and not always."""
_MAKE_DRAFT: Mapping[Algorithm | None, Callable[[Path, Path], object]] = {
    Algorithm.EAGLE: eagle_of,
    Algorithm.EAGLE3: eagle3_of,
    Algorithm.STANDALONE: first_layers,
}
"""The functions that build a draft model from a target; n-grams need no model."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Let torch compute on one thread in a block, as the tensors of cases are small.

    On two busy cores, two threads took four times as long as one: they spin for one another.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of a small target."""

    vocab_size: int = 512
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    max_position_embeddings: int = 2048
    dtype: torch.dtype = torch.float32
    num_layers: int | None = None
    """None: as few as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallModels:
    """The folders of a target and of its draft model."""

    target: Path
    draft: Path | None
    """None without drafts, and where n-grams draft."""


@contextmanager
def small_models(
    algorithm: Algorithm | None, *, seed: int = 0, sizes: ModelSizes | None = None
) -> Iterator[SmallModels]:
    """Write models to a temporary folder for a `with` block, in which torch uses one thread.

    Args:
        algorithm: how drafts are made; a head or a draft model is built from the target's first
            layer. None: no drafts.
        seed: the seed of the weights.
        sizes: the sizes of the target.
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
