"""A whole step, of drafting, verifying and accepting, on devices that run beside the host."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.model.sampling import SamplingBatch
from backend_caps.runtime.speculative.contexts import tree_mask
from backend_caps.runtime.speculative.tree import Candidates, accepted, best_tree, predict
from backend_caps.simulator import Schedule, register, simulate
from backend_caps.simulator.streams import CUDAGraph, graph
from tests.runtime.speculative.drafted import VOCAB, Drafts, step_of
from tests.simulator.orders import in_every_order

_BATCH, _STEPS, _LONGEST = 3, 3, 16
_TOPKS = pytest.mark.parametrize("topk", [1, 2, 3])


def _inputs(seed: int, topk: int) -> list[Tensor]:
    """Draw what a step starts from; the last request is padding."""
    rng = random.Random(seed)  # noqa: S311 - drafts
    batch = [Drafts.drawn(rng, topk, _STEPS) for _ in range(_BATCH)]
    num_nodes = 6 if topk > 1 else _STEPS + 1
    generator = torch.Generator().manual_seed(seed)
    return [
        *(part for step in range(_STEPS) for part in step_of(batch, step)),
        2 * torch.randn(_BATCH * num_nodes, VOCAB, generator=generator),
        torch.tensor([rng.randrange(VOCAB) for _ in batch]),
        torch.tensor([rng.randint(1, 4), rng.randint(1, 4), 0]),
        torch.tensor([0.0, 1.0, 0.7]),
        torch.tensor([seed, seed + 1, seed + 2]),
        torch.tensor([2, 3, 9]),
        torch.tensor([1.0, 0.9, 0.8]),
    ]


def _step(inputs: Sequence[Tensor], buffer: Tensor | None = None) -> list[Tensor]:
    """Draft, verify and accept, with all masks on the way."""
    *drafted, logits, roots, lengths, temperature, seeds, top_k, top_p = inputs
    candidates = Candidates.start(drafted[0], drafted[1])
    masks = list[Tensor | None]()
    for step in range(1, _STEPS):
        beams, seq_lens = candidates.beams(), lengths + step * candidates.topk
        masks.append(_mask(beams.ancestors, seq_lens))
        candidates = candidates.grown(beams, drafted[2 * step], drafted[2 * step + 1])
    num_nodes = logits.shape[0] // _BATCH
    tree, seq_lens = best_tree(candidates, roots, num_nodes), lengths + num_nodes
    masks.append(_mask(tree.visible, seq_lens, buffer))
    sampling = SamplingBatch(
        temperature=temperature, seeds=seeds, positions=lengths, top_k=top_k, top_p=top_p
    )
    result = accepted(tree, predict(logits, tree.depths, lengths, sampling), num_steps=_STEPS)
    numbers = [result.path, result.accept_lens, result.tokens, result.bonus_tokens]
    return [*numbers, *(mask for mask in masks if mask is not None)]


def _mask(visible: Tensor | None, seq_lens: Tensor, buffer: Tensor | None = None) -> Tensor | None:
    if visible is None:
        return None
    return tree_mask(visible, seq_lens, seq_lens_sum=None, max_context_len=_LONGEST, buffer=buffer)


def _lists(results: Sequence[Tensor]) -> list[object]:
    return [result.tolist() for result in results]


@_TOPKS
@pytest.mark.parametrize("has_buffer", [True, False])
@in_every_order(1)
def test_step_never_waits(schedule: Schedule, topk: int, *, has_buffer: bool) -> None:
    """On the simulated device a step makes the host wait for nothing, and copies nothing."""
    sim = register()
    inputs = [own.to(sim) for own in _inputs(5, topk)]
    with simulate(schedule) as simulation:
        buffer = torch.zeros(500, dtype=torch.bool, device=sim) if has_buffer else None
        results = _step(inputs, buffer)
        waits = [*simulation.hidden_syncs, *simulation.host_waits]
        counts = simulation.counts
        crossed = counts.bytes_to_host, counts.bytes_to_device
        found = _lists(results)

    cpu_buffer = torch.zeros(500, dtype=torch.bool) if has_buffer else None
    assert waits == []
    assert crossed == (0, 0)
    assert found == _lists(_step(_inputs(5, topk), cpu_buffer))


@_TOPKS
@in_every_order(1)
def test_replay_takes_new_drafts(schedule: Schedule, topk: int) -> None:
    """A captured step gives at each replay what its tensors hold by then makes."""
    with simulate(schedule):
        static, buffer = [own.to("sim") for own in _inputs(5, topk)], torch.zeros(500).bool()
        captured, buffer = CUDAGraph(), buffer.to("sim")
        with graph(captured):
            results = _step(static, buffer)
        for seed in (6, 7):
            for own, new in zip(static, _inputs(seed, topk), strict=True):
                own.copy_(new)
            captured.replay()
            expected = _step(_inputs(seed, topk), torch.zeros(500, dtype=torch.bool))
            assert _lists(results) == _lists(expected)


@_TOPKS
@pytest.mark.parametrize("seed", range(5))
def test_step_is_the_same_on_each_device(device: torch.device, seed: int, topk: int) -> None:
    """On each device masks, paths and tokens are those of the CPU."""
    inputs = _inputs(seed, topk)

    assert _lists(_step([own.to(device) for own in inputs])) == _lists(_step(inputs))


@_TOPKS
def test_request_is_the_same_in_any_batch(topk: int) -> None:
    """What becomes of a request does not depend on who is beside it."""
    inputs = _inputs(9, topk)
    num_nodes = inputs[6].shape[0] // _BATCH
    turned = [own.roll(num_nodes if place == 6 else 1, 0) for place, own in enumerate(inputs)]

    results, others = _step(inputs), _step(turned)

    assert [own.roll(1, 0).tolist() for own in results[:4]] == _lists(others[:4])
