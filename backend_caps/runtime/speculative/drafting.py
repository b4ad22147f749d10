"""From a configuration to what drafts: the draft model, its backends and its graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from backend_caps.capability.kind import Role
from backend_caps.relay import DraftShape
from backend_caps.relay.streams import StreamLike
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.graphs.runner import CaptureObserver
from backend_caps.runtime.memory import Pools, TokenToKVPool, make_cache
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.model.draft_loading import load_eagle, load_eagle3, load_standalone
from backend_caps.runtime.model.eagle3 import Eagle3Config, Eagle3Head
from backend_caps.runtime.model.llama import LlamaModel
from backend_caps.runtime.options import check_fit
from backend_caps.runtime.speculation import Algorithm, SpecSettings, misfit
from backend_caps.runtime.speculative.drafter import (
    Drafter,
    DraftForwards,
    ModelDrafter,
    capture_draft,
)
from backend_caps.runtime.speculative.ngram import NgramDrafter
from backend_caps.runtime.staging import Staging
from backend_caps.startup.configuration import Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What drafts, and what the relay carries for it."""

    drafter: Drafter
    shape: DraftShape | None = None
    """None where the draft has no state."""
    forwards: Mapping[Role, DraftForwards] = field(default_factory=dict)
    """Those of a draft model, by role; none where there is no model."""
    cache: TokenToKVPool | None = None
    """The model's keys and values, in the target's slots."""


def load_draft(
    settings: SpecSettings, target: LlamaModel, draft_model_path: str | Path | None
) -> DraftModel | None:
    """Load the draft model, and let its target return what it reads; None where none drafts.

    The target's `aux_layer_ids` are set, so call it before the target's forwards are captured.

    Raises:
        EngineError: `speculation`: trees have more branches than the draft has tokens;
            `draft-model`: the algorithm drafts with a model, and none is named.
        BackendCapsError: the model cannot be loaded.
    """
    _check_topk(settings, target.config.vocab_size, "model")
    if not settings.has_draft_model:
        return None
    load = _LOADERS[settings.algorithm]
    folder = _folder(draft_model_path, settings.algorithm)
    model = load(folder, target, num_positions=target.num_positions)
    _check_topk(settings, model.vocab_size, "draft")
    if isinstance(model, Eagle3Head):
        target.aux_layer_ids = model.config.layers_read(target.config.num_hidden_layers)
    return model


def draft_shape(
    settings: SpecSettings,
    target: LlamaConfig,
    dtype: torch.dtype,
    draft_model_path: str | Path | None,
) -> DraftShape | None:
    """Return what a draft model hands to the next step, from config.json alone.

    Args:
        settings: the server's.
        target: the target's shape.
        dtype: what the target computes in.
        draft_model_path: the draft's folder, which an EAGLE3 head's width is read from.

    Raises:
        EngineError: `draft-model`: the algorithm is EAGLE3, and no folder is named.
        BackendCapsError: the head's config cannot be read.
    """
    if not settings.has_draft_model:
        return None
    hidden_size: int | None = None
    if settings.algorithm is Algorithm.EAGLE:
        hidden_size = target.hidden_size
    elif settings.algorithm is Algorithm.EAGLE3:
        folder = _folder(draft_model_path, settings.algorithm)
        hidden_size = Eagle3Config.from_folder(folder).hidden_size
    return _shape(settings, hidden_size, dtype)


def _folder(draft_model_path: str | Path | None, algorithm: Algorithm) -> str | Path:
    if draft_model_path is not None:
        return draft_model_path
    raise EngineError(
        "draft-model",
        f"--speculative-algorithm {algorithm.value} drafts with a model, and none was given; a "
        f"Hugging Face folder of one was expected. Name it: Engine(..., draft_model_path=...).",
    )


def make_drafting(
    configuration: Configuration,
    settings: SpecSettings,
    target: LlamaModel,
    model: DraftModel | None,
    pools: Pools,
    staging: Staging,
    *,
    forward_stream: StreamLike,
    capture_observer: CaptureObserver | None = None,
) -> Drafting:
    """Build a draft model's memory and attention, and capture its forwards.

    Args:
        configuration: says what is captured, and which backends attend.
        settings: how large a tree is.
        target: says what follows.
        model: drafts; None: the host does.
        pools: the target's.
        staging: carries host numbers to the device.
        forward_stream: what is captured on.
        capture_observer: is called after each capture.

    Raises:
        BackendCapsError: a backend cannot be had, or does not take the model.
    """
    if model is None:
        return Drafting(drafter=NgramDrafter(settings, staging))
    plan = configuration.plan
    check_fit(plan, target, staging.streams, model.config)
    cache = make_cache(plan, model.config, target, pools.token_to_kv_pool.num_slots)
    site = replace(pools, token_to_kv_pool=cache)
    table: Tensor = pools.req_to_token_pool.req_to_token
    masked = 0 if settings.is_chain else settings.topk * table.shape[1]
    forwards = {
        role: capture_draft(
            model,
            PhaseBackends(plan.uses, role, site),
            configuration,
            stream=forward_stream,
            mask_size=masked if role is Role.DRAFT else 0,
            observer=capture_observer,
        )
        for role in (Role.DRAFT, Role.DRAFT_EXTEND)
    }
    hidden_size = model.config.hidden_size if model.reads_hidden else None
    return Drafting(
        drafter=ModelDrafter(model, forwards, settings, table),
        shape=_shape(settings, hidden_size, target.dtype),
        forwards=forwards,
        cache=cache,
    )


def _shape(settings: SpecSettings, hidden_size: int | None, dtype: torch.dtype) -> DraftShape:
    return DraftShape(
        topk=settings.topk,
        hidden_size=hidden_size,
        dtype=None if hidden_size is None else dtype,
        accept_tokens=settings.accept_tokens,
    )


def _check_topk(settings: SpecSettings, vocab_size: int, whose: str) -> None:
    if settings.topk > vocab_size:
        expected = f"at most the {whose}'s {vocab_size} tokens"
        raise misfit("--speculative-eagle-topk", settings.topk, expected)


_LOADERS: Mapping[Algorithm, Callable[..., DraftModel]] = {
    Algorithm.EAGLE: load_eagle,
    Algorithm.EAGLE3: load_eagle3,
    Algorithm.STANDALONE: load_standalone,
}
