"""From a plan to what drafts: the draft model and its backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from backend_caps.capability.kind import Role
from backend_caps.relay import DraftShape
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.errors import MissingDraftModelError, SpeculationError
from backend_caps.runtime.memory import TokenToKVPool
from backend_caps.runtime.model import LlamaModel
from backend_caps.runtime.model.draft import DraftModel
from backend_caps.runtime.model.draft_loading import load_eagle, load_standalone
from backend_caps.runtime.options import check_fit
from backend_caps.runtime.pools import Pools, make_cache
from backend_caps.runtime.speculative.drafter import Drafter
from backend_caps.runtime.speculative.model_drafter import ModelDrafter
from backend_caps.runtime.speculative.ngram_drafter import NgramDrafter
from backend_caps.runtime.speculative.settings import Algorithm, SpecSettings
from backend_caps.runtime.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What drafts, and what the relay carries for it."""

    drafter: Drafter
    shape: DraftShape | None
    """None where the draft has no state."""
    backends: Mapping[Role, PhaseBackends]
    """The attention of a draft model, by role; none where there is no model."""
    model: DraftModel | None = None
    """None where no model drafts."""
    cache: TokenToKVPool | None = None
    """The model's keys and values, in the target's slots."""


def make_drafting(
    plan: Plan,
    settings: SpecSettings,
    target: LlamaModel,
    pools: Pools,
    staging: Staging,
    draft_model_path: str | Path | None,
) -> Drafting:
    """Load the draft model, and build its attention.

    Raises:
        SpeculationError: trees have more branches than the model has tokens.
        MissingDraftModelError: the algorithm drafts with a model, and none is named.
        BackendCapsError: the model or a backend cannot be had.
    """
    if settings.topk > (vocab_size := target.config.vocab_size):
        raise SpeculationError(
            flag="--speculative-eagle-topk",
            value=settings.topk,
            expected=f"at most the model's {vocab_size} tokens",
        )
    if settings.algorithm is Algorithm.NGRAM:
        return Drafting(drafter=NgramDrafter(settings, staging), shape=None, backends={})
    if draft_model_path is None:
        raise MissingDraftModelError(algorithm=settings.algorithm.value)
    load = load_eagle if settings.algorithm is Algorithm.EAGLE else load_standalone
    model: DraftModel = load(draft_model_path, target, num_positions=target.num_positions)
    check_fit(plan, target, staging.streams, model.config)
    cache = make_cache(plan, model.config, target, pools.token_to_kv_pool.num_slots)
    site = replace(pools, token_to_kv_pool=cache)
    backends = {
        role: PhaseBackends(plan.uses, role, site) for role in (Role.DRAFT, Role.DRAFT_EXTEND)
    }
    table: Tensor = pools.req_to_token_pool.req_to_token
    hidden_size = target.config.hidden_size if model.reads_hidden else None
    return Drafting(
        drafter=ModelDrafter(model, backends, settings, table),
        shape=DraftShape(
            topk=settings.topk,
            hidden_size=hidden_size,
            dtype=None if hidden_size is None else target.dtype,
            accept_tokens=settings.accept_tokens,
        ),
        backends=backends,
        model=model,
        cache=cache,
    )
