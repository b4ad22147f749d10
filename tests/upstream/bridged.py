"""Bridged backends beside SGLang's own TorchNativeAttnBackend, on the same pools and batches.

Two places ask: the tests, with SGLang's class out of its wheel on pools of their own, and the
environment that `make upstream` builds, with SGLang's real pools, batches and layers:

    python -m tests.upstream.bridged

prints as JSON how far the outputs are apart, by backend and case.

Shapes: B requests and T tokens in a batch, P rows in the request pool, L the longest context, S
slots in the KV cache, Hq query heads, Hk key and value heads, D their size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from backend_caps import Declaration

HEAD_DIM, LONGEST, NUM_PAGES = 16, 64, 24
CLOSE = 1e-5


@dataclass(frozen=True, slots=True)
class Case:
    """One batch, by its requests."""

    name: str
    mode: str
    """SGLang's."""
    requests: tuple[tuple[int, int], ...]
    """Of each request, the tokens before this forward and those in it."""
    num_q_heads: int = 4
    num_k_heads: int = 4
    page_size: int = 1

    def __str__(self) -> str:
        return self.name


_DECODES = ((4, 1), (0, 1), (30, 1))
CASES = (
    Case("decode", "DECODE", _DECODES),
    Case("decode-gqa-page-16", "DECODE", _DECODES, num_k_heads=2, page_size=16),
    Case("extend", "EXTEND", ((0, 5), (0, 1), (0, 17))),
    Case("extend-prefix", "EXTEND", ((7, 5), (32, 3), (1, 1))),
    Case("extend-prefix-gqa-page-16", "EXTEND", ((16, 9), (3, 20)), num_k_heads=1, page_size=16),
    Case("mixed-page-64", "MIXED", ((0, 12), (40, 1), (9, 1)), num_k_heads=2, page_size=64),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a batch is made of; each page is where a permutation put it."""

    case: Case
    req_to_token: Tensor
    """[P, L] int32."""
    cache: tuple[Tensor, Tensor]
    """[S, Hk, D] float32, keys and values."""
    q: Tensor
    """[T, Hq * D] float32."""
    new: tuple[Tensor, Tensor]
    """[T, Hk, D] float32, keys and values."""
    rows: Tensor
    """[B] int64."""
    out_cache_loc: Tensor
    """[T] int64."""

    @property
    def news(self) -> list[int]:
        """Tokens of each request in this forward."""
        return [new for _, new in self.case.requests]

    @property
    def prefixes(self) -> list[int]:
        """Tokens of each request before it."""
        return [before for before, _ in self.case.requests]


def draw(case: Case) -> Drawn:
    """Draw a batch's values and places, the same ones each time."""
    dice = torch.Generator().manual_seed(0)
    size, count = case.page_size, len(case.requests)
    num_tokens = sum(new for _, new in case.requests)
    num_pages = max(NUM_PAGES, count * LONGEST // size)
    pages = torch.randperm(num_pages, generator=dice)[: count * LONGEST // size] + 1
    slots = (pages[:, None] * size + torch.arange(size)).reshape(count, LONGEST)
    table = torch.zeros(count + 3, LONGEST, dtype=torch.int32)
    rows = torch.randperm(count + 2, generator=dice)[:count] + 1
    table[rows] = slots.int()
    shape = (case.num_k_heads, HEAD_DIM)
    written = [slots[i, old : old + new] for i, (old, new) in enumerate(case.requests)]
    return Drawn(
        case=case,
        req_to_token=table,
        cache=_pair(((num_pages + 1) * size, *shape), dice),
        q=torch.randn(num_tokens, case.num_q_heads * HEAD_DIM, generator=dice),
        new=_pair((num_tokens, *shape), dice),
        rows=rows,
        out_cache_loc=torch.cat(written),
    )


def _pair(shape: tuple[int, ...], dice: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, generator=dice), torch.randn(shape, generator=dice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How one place makes SGLang's objects."""

    native: Callable[[SimpleNamespace], SimpleNamespace]
    """SGLang's own TorchNativeAttnBackend."""
    arch: object
    """SGLang's AttentionArch.MHA."""
    pools: Callable[[Drawn], tuple[object, object]]
    """The request pool and the KV pool."""
    batch: Callable[[Drawn], object]
    layer: Callable[[Case], object]


def runner_of(drawn: Drawn, parts: Parts) -> SimpleNamespace:
    """Make what stands in for SGLang's model runner."""
    rows, pool = parts.pools(drawn)
    return SimpleNamespace(
        device="cpu",
        dtype=torch.float32,
        kv_cache_dtype=torch.float32,
        page_size=drawn.case.page_size,
        sliding_window_size=None,
        is_draft_worker=False,
        model_config=SimpleNamespace(
            attention_arch=parts.arch,
            head_dim=HEAD_DIM,
            context_len=LONGEST,
            is_encoder_decoder=False,
        ),
        req_to_token_pool=rows,
        token_to_kv_pool=pool,
        kv_index_translator=SimpleNamespace(is_translating=False),
    )


def lengths_of(drawn: Drawn) -> dict[str, object]:
    """Say what SGLang's batch says of lengths, on the device and on the host."""
    seq_lens = [old + new for old, new in drawn.case.requests]
    said: dict[str, object] = {
        "batch_size": len(drawn.rows),
        "spec_info": None,
        "req_pool_indices": drawn.rows,
        "seq_lens": torch.tensor(seq_lens),
        "seq_lens_cpu": torch.tensor(seq_lens),
        "seq_lens_sum": sum(seq_lens),
        "out_cache_loc": drawn.out_cache_loc,
    }
    if drawn.case.mode != "DECODE":
        said |= {
            "extend_seq_lens": torch.tensor(drawn.news, dtype=torch.int32),
            "extend_prefix_lens": torch.tensor(drawn.prefixes, dtype=torch.int32),
            "extend_seq_lens_cpu": drawn.news,
            "extend_prefix_lens_cpu": drawn.prefixes,
        }
    return said


def output_of(
    make: Callable[[SimpleNamespace], SimpleNamespace], drawn: Drawn, parts: Parts
) -> tuple[Tensor, Tensor, Tensor]:
    """Run one batch in a backend: its output, and the new keys and values in the pool."""
    runner = runner_of(drawn, parts)
    backend, batch = make(runner), parts.batch(drawn)
    backend.init_forward_metadata(batch)
    output = backend.forward(drawn.q.clone(), *drawn.new, parts.layer(drawn.case), batch)
    pool = runner.token_to_kv_pool
    stored = (pool.get_key_buffer(0), pool.get_value_buffer(0))
    return output, *(own[drawn.out_cache_loc] for own in stored)


def distance(name: str, declaration: Declaration, case: Case, parts: Parts) -> float:
    """Measure how far a bridged backend is from SGLang's own: the largest difference."""
    from backend_caps_sglang.bridge import bridge  # noqa: PLC0415 - imports SGLang

    drawn = draw(case)
    expected = output_of(parts.native, drawn, parts)
    pairs = zip(output_of(bridge(name, declaration), drawn, parts), expected, strict=True)
    return max((own - right).abs().max().item() for own, right in pairs)


def real_parts() -> Parts:
    """Take everything from an SGLang that is installed."""
    from backend_caps_sglang.kit.engine_modules import load_sglang  # noqa: PLC0415

    sglang = load_sglang()
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend  # noqa: PLC0415
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool  # noqa: PLC0415

    def pools(drawn: Drawn) -> tuple[object, object]:
        rows = ReqToTokenPool(
            len(drawn.req_to_token) - 1, LONGEST, "cpu", enable_memory_saver=False
        )
        rows.req_to_token.copy_(drawn.req_to_token)
        size = drawn.case.page_size
        pool = MHATokenToKVPool(
            len(drawn.cache[0]) - size,
            size,
            torch.float32,
            drawn.case.num_k_heads,
            HEAD_DIM,
            1,
            "cpu",
            enable_memory_saver=False,
        )
        for buffer, own in zip(
            (pool.get_key_buffer(0), pool.get_value_buffer(0)), drawn.cache, strict=True
        ):
            buffer.copy_(own)
        return rows, pool

    def batch(drawn: Drawn) -> object:
        made = sglang.batches.ForwardBatch(
            forward_mode=sglang.batches.ForwardMode[drawn.case.mode],
            input_ids=torch.zeros(len(drawn.q), dtype=torch.int64),
            **{
                k: v
                for k, v in lengths_of(drawn).items()
                if not k.startswith(("extend", "seq_lens_cpu"))
            },
        )
        for name, value in lengths_of(drawn).items():
            setattr(made, name, value)
        return made

    def layer(case: Case) -> object:
        return sglang.layers.RadixAttention(
            num_heads=case.num_q_heads,
            head_dim=HEAD_DIM,
            scaling=HEAD_DIM**-0.5,
            num_kv_heads=case.num_k_heads,
            layer_id=0,
        )

    return Parts(
        native=TorchNativeAttnBackend,
        arch=sglang.models.AttentionArch.MHA,
        pools=pools,
        batch=batch,
        layer=layer,
    )


def distances(parts: Parts) -> Mapping[str, float]:
    """Measure every backend in every case."""
    from torch_native_caps import TORCH_NATIVE, TORCH_PADDED  # noqa: PLC0415

    backends = {"torch_native": TORCH_NATIVE, "torch_padded": TORCH_PADDED}
    return {
        f"{name}/{case}": distance(name, declaration, case, parts)
        for name, declaration in backends.items()
        for case in CASES
    }


if __name__ == "__main__":
    json.dump(distances(real_parts()), sys.stdout)
