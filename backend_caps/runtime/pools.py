"""The pools of one engine: as much room as its options say."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.resolution.plan import Plan
from backend_caps.runtime.errors import PoolShapeError
from backend_caps.runtime.memory import (
    PagePool,
    ReqToTokenPool,
    RequestMemory,
    TokenToKVPool,
    num_pages_of,
)
from backend_caps.runtime.model import LlamaConfig, LlamaModel
from backend_caps.runtime.options import KV_CACHE_DTYPES, EngineOptions, page_size_of
from backend_caps.runtime.staging import Staging


@dataclass(frozen=True, slots=True)
class Pools:
    """What backends are built from (`BackendSite`)."""

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool: TokenToKVPool


FULL_CONTEXTS = 8
"""Full contexts that the KV cache has room for, where nobody says how many tokens it holds."""


def make_pools(
    plan: Plan, model: LlamaModel, options: EngineOptions, staging: Staging, lookahead: int = 0
) -> tuple[RequestMemory, Pools]:
    """Make the page table and the KV cache, and who hands their rows and pages out.

    Args:
        plan: says how large pages are, and what they hold.
        model: whose keys and values; it tells apart the positions of a context and `lookahead`.
        options: how much room there is.
        staging: carries new entries of the table to the device.
        lookahead: slots behind the longest context that speculative steps write to.

    Raises:
        PageSizeError: no page size suits every backend.
        PoolShapeError: the KV cache would hold less than a page.
    """
    page_size = page_size_of(plan)
    num_pages = FULL_CONTEXTS * num_pages_of(model.num_positions, page_size)
    if options.max_total_tokens is not None:
        num_pages = options.max_total_tokens // page_size
    if not num_pages:
        raise PoolShapeError(field=f"max_total_tokens in pages of {page_size}", value=num_pages)
    rows = ReqToTokenPool(
        max_requests=options.max_running_requests,
        max_context_len=model.num_positions - lookahead,
        page_size=page_size,
        device=model.device,
        lookahead=lookahead,
    )
    cache = make_cache(plan, model.config, model, (num_pages + 1) * page_size)
    return RequestMemory(rows, PagePool(num_pages), staging), Pools(rows, cache)


def make_cache(
    plan: Plan, config: LlamaConfig, target: LlamaModel, num_slots: int
) -> TokenToKVPool:
    """Make the KV cache of a model: the target, or a draft of it in the same slots.

    Args:
        plan: says what it holds.
        config: the model's shape.
        target: says where it is, and what it holds where the plan does not.
        num_slots: S, the padding page included.
    """
    return TokenToKVPool(
        num_slots=num_slots,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        v_head_dim=config.head_dim,
        dtype=KV_CACHE_DTYPES.get(plan.flags.kv_cache_dtype, target.dtype),
        device=target.device,
    )
