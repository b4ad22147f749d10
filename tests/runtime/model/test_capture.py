from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.model.layers import AttentionLayer
from backend_caps.runtime.model.llama import LlamaModel, load_llama
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.runtime.model.sampling import SamplingBatch, sample_tokens
from tests.relay.forbidding import syncs_forbidden

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device: nothing else captures"
)


class OwnToken:
    """A context in which each token sees itself alone."""

    def attend(self, layer: AttentionLayer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return each query head's value."""
        del q, k
        heads = v.view(v.shape[0], layer.tp_k_head_num, layer.v_head_dim)
        sharing = layer.tp_q_head_num // layer.tp_k_head_num
        return heads.repeat_interleave(sharing, dim=1).flatten(1)


def _sampling(num_requests: int) -> SamplingBatch:
    numbers = torch.arange(num_requests, device="cuda")
    return SamplingBatch(
        temperature=torch.ones(num_requests, device="cuda"),
        seeds=numbers,
        positions=numbers + 5,
        top_k=torch.full((num_requests,), 50, device="cuda"),
        top_p=torch.full((num_requests,), 0.9, device="cuda"),
    )


def _step(model: LlamaModel, ids: Tensor) -> Tensor:
    """Forward tokens, and choose what follows each of them."""
    logits = model(ids, ids, OwnToken())
    return sample_tokens(logits, _sampling(ids.shape[0]))


@needs_cuda
def test_replay_on_cuda_computes_new_tokens(tmp_path: Path) -> None:
    """A captured step, sampling included, is replayed for what its tensors hold by then."""
    random_llama(tmp_path)
    model = load_llama(tmp_path, "cuda")
    ids = torch.arange(8, device="cuda")
    _step(model, ids)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = _step(model, ids)
    ids.add_(100)
    graph.replay()

    assert torch.equal(tokens, _step(model, ids))


@needs_cuda
def test_step_does_not_wait_for_cuda(tmp_path: Path) -> None:
    """Neither a forward nor sampling makes the host wait."""
    random_llama(tmp_path)
    model = load_llama(tmp_path, "cuda")
    ids = torch.arange(8, device="cuda")

    with syncs_forbidden():
        tokens = _step(model, ids)

    assert tokens.shape == (8,)
