"""Two-batch overlap's halves of a bridged backend, in SGLang's own wrapper and by its own split.

    python -m tests.upstream.sglang_halves

prints as JSON, by case, how far the halves' outputs are from the whole batch's.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from types import SimpleNamespace

import torch
from torch import Tensor
from torch_native_caps import TORCH_PADDED

from tests.upstream.bridged import Case, Drawn, Parts, draw, real_parts, runner_of

_NUM_TOKENS = 4
_PREFIXES = (7, 1, 30, 12)
_DECODE = Case("decode", "DECODE", tuple((own, 1) for own in _PREFIXES), num_k_heads=2)
_VERIFY = Case("verify", "TARGET_VERIFY", tuple((own, _NUM_TOKENS) for own in _PREFIXES))
_TREE = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
"""A root, two children, and a child of the first."""
_SPLIT = 2
"""Requests of the first half."""


def halves(case: Case, topk: int, parts: Parts) -> float:
    """Run a batch whole and in halves, as SGLang's wrapper does: the largest difference."""
    bridge = import_module("backend_caps_sglang.bridge").bridge
    wrapper = import_module("sglang.srt.layers.attention.tbo_backend").TboAttnBackend
    drawn = draw(case)
    runner = runner_of(drawn, parts)
    batch = _batch(drawn, topk, parts)
    each = len(drawn.q) // len(drawn.rows)
    cut = _SPLIT * each
    batch.tbo_children = [
        _half(batch, slice(0, _SPLIT), slice(0, cut)),
        _half(batch, slice(_SPLIT, len(drawn.rows)), slice(cut, len(drawn.q))),
    ]
    backend = wrapper.init_new(lambda: bridge("torch_padded", TORCH_PADDED)(runner))
    backend.init_forward_metadata(batch)
    layer = parts.layer(case)

    whole = backend.forward(drawn.q.clone(), *drawn.new, layer, batch)
    outputs = [
        child.forward(drawn.q[some].clone(), *(own[some] for own in drawn.new), layer, half)
        for child, half, some in zip(
            backend.children,
            batch.tbo_children,
            (slice(0, cut), slice(cut, len(drawn.q))),
            strict=True,
        )
    ]
    assert backend.needs_cpu_seq_lens, "SGLang splits by lengths on the host"
    return float((torch.cat(outputs) - whole).abs().max())


def _batch(drawn: Drawn, topk: int, parts: Parts) -> SimpleNamespace:
    batch = parts.batch(drawn)
    assert isinstance(batch, object)
    made: SimpleNamespace = batch  # type: ignore[assignment] # SGLang's, where it is installed
    made.positions = torch.zeros(len(drawn.q), dtype=torch.int64)
    made.extend_num_tokens = None
    if drawn.case.mode == "TARGET_VERIFY":
        prefixes = torch.tensor(drawn.prefixes)
        made.seq_lens = made.seq_lens_cpu = prefixes
        made.spec_info = _tree(prefixes, topk, len(drawn.q))
    return made


def _tree(prefixes: Tensor, topk: int, num_tokens: int) -> object:
    info = import_module("sglang.srt.speculative.eagle_info").EagleVerifyInput
    rows = [torch.cat([torch.ones(4, own, dtype=torch.bool), _TREE], 1) for own in prefixes]
    return info(
        draft_token=torch.zeros(num_tokens, dtype=torch.int64),
        custom_mask=torch.cat([own.flatten() for own in rows]),
        positions=None,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_cum_len=None,
        spec_steps=3,
        topk=topk,
        draft_token_num=_NUM_TOKENS,
        capture_hidden_mode=None,
        seq_lens_sum=int(prefixes.sum()),
        seq_lens_cpu=prefixes,
    )


def _half(batch: SimpleNamespace, requests: slice, tokens: slice) -> object:
    """Cut a batch by SGLang's own function."""
    preparer = import_module("sglang.srt.batch_overlap.two_batch_overlap").TboForwardBatchPreparer
    return preparer.filter_batch(
        batch,
        start_token_index=tokens.start,
        end_token_index=tokens.stop,
        start_seq_index=requests.start,
        end_seq_index=requests.stop,
        out_num_token_non_padded=torch.tensor(tokens.stop - tokens.start),
    )


def distances() -> dict[str, float]:
    """Measure a decode, a chain and a tree."""
    parts = real_parts()
    context = import_module("sglang.srt.runtime_context").get_context()
    found = {}
    for name, case, topk in (("decode", _DECODE, 1), ("chain", _VERIFY, 1), ("tree", _VERIFY, 2)):
        context.override_server_args(
            device="cpu",
            enable_two_batch_overlap=True,
            speculative_algorithm=None if name == "decode" else "EAGLE",
            speculative_num_steps=3,
            speculative_eagle_topk=topk,
            speculative_num_draft_tokens=_NUM_TOKENS,
        ).install()
        found[name] = halves(case, topk, parts)
    return found


if __name__ == "__main__":
    json.dump(distances(), sys.stdout)
