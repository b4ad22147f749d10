from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.model.sampling import SamplingBatch, sample_tokens
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.tree import (
    Candidates,
    DraftTree,
    accepted,
    best_tree,
    predict,
)

VOCAB, LENGTH = 8, 3
PROMPT = (3, 5)
"""The last tokens of every request's context."""
_GENERATOR = torch.Generator().manual_seed(7)
TARGET = 1.5 * torch.randn(VOCAB, VOCAB, VOCAB, generator=_GENERATOR)
"""The target's scores, by the last token but one and the last."""
DRAFT = TARGET.mean(dim=0) + 0.5 * torch.randn(VOCAB, VOCAB, generator=_GENERATOR)
"""The draft's, by the last token alone: often right, and often wrong."""


@dataclass(slots=True)
class Written:
    """What a batch has so far."""

    tokens: Tensor
    """[B, ...] with room for a whole step behind the last one."""
    lengths: Tensor
    """[B] how many there are."""

    @classmethod
    def begun(cls, num_requests: int) -> Written:
        """Begin each with the prompt."""
        room = torch.zeros(num_requests, len(PROMPT) + LENGTH + 8, dtype=torch.int64)
        room[:, : len(PROMPT)] = torch.tensor(PROMPT)
        return cls(tokens=room, lengths=torch.full((num_requests,), len(PROMPT)))

    def last(self, place: int) -> Tensor:
        """Take the last tokens, or those before them."""
        return self.tokens.gather(1, (self.lengths - place).unsqueeze(1)).squeeze(1)

    @property
    def output(self) -> Tensor:
        """[B, LENGTH] what came behind the prompt."""
        return self.tokens[:, len(PROMPT) : len(PROMPT) + LENGTH]

    def add(self, tokens: Tensor, counts: Tensor) -> None:
        """Write a step's tokens; those behind the counts are written over by the next step."""
        places = self.lengths.unsqueeze(1) + torch.arange(tokens.shape[1])
        self.tokens.scatter_(1, places.clamp(max=self.tokens.shape[1] - 1), tokens)
        self.lengths = self.lengths + counts


def _sampling(num: int, temperature: float, **limits: float) -> SamplingBatch:
    return SamplingBatch(
        temperature=torch.full((num,), temperature),
        seeds=torch.arange(num),
        positions=torch.full((num,), -1),
        top_k=torch.full((num,), int(limits["top_k"])) if "top_k" in limits else None,
        top_p=torch.full((num,), limits["top_p"]) if "top_p" in limits else None,
    )


def _drafted(settings: SpecSettings, roots: Tensor) -> DraftTree:
    """Let the draft model make a tree for each root."""

    def drafts(of: Tensor) -> tuple[Tensor, Tensor]:
        topk = DRAFT[of].softmax(dim=-1).topk(settings.topk)
        return topk.values, topk.indices

    candidates = Candidates.start(*drafts(roots))
    for _ in range(settings.num_steps - 1):
        beams = candidates.beams()
        candidates = candidates.grown(beams, *drafts(beams.tokens))
    return best_tree(candidates, roots, settings.num_draft_tokens)


def _speculated(settings: SpecSettings, sampling: SamplingBatch) -> Tensor:
    """Decode by speculation."""
    written = Written.begun(sampling.seeds.shape[0])
    while int(written.lengths.min()) < len(PROMPT) + LENGTH:
        tree = _drafted(settings, written.last(1))
        before = tree.tokens.gather(1, tree.parents)
        before[:, 0] = written.last(2)
        logits = TARGET[before, tree.tokens].flatten(0, 1)
        predicted = predict(logits, tree.depths, written.lengths - 1, sampling)
        step = accepted(tree, predicted, num_steps=settings.num_steps)
        counts = step.accept_lens.masked_fill(written.lengths >= len(PROMPT) + LENGTH, 0)
        written.add(step.tokens, counts)
    return written.output


def _decoded(sampling: SamplingBatch) -> Tensor:
    """Decode token by token."""
    written = Written.begun(sampling.seeds.shape[0])
    for _ in range(LENGTH):
        logits = TARGET[written.last(2), written.last(1)]
        tokens = sample_tokens(logits, replace(sampling, positions=written.lengths))
        written.add(tokens.unsqueeze(1), torch.ones_like(tokens))
    return written.output


def _settings(topk: int, num_steps: int, num_draft_tokens: int) -> SpecSettings:
    return SpecSettings(
        algorithm=Algorithm.EAGLE, topk=topk, num_steps=num_steps, num_draft_tokens=num_draft_tokens
    )


TREES = [
    pytest.param(_settings(1, 3, 4), id="chain"),
    pytest.param(_settings(2, 2, 5), id="two branches"),
    pytest.param(_settings(3, 3, 16), id="three branches"),
    pytest.param(_settings(4, 1, 5), id="one step"),
]
LIMITS = [
    pytest.param({"temperature": 1.0}, id="temperature 1"),
    pytest.param({"temperature": 0.6}, id="low temperature"),
    pytest.param({"temperature": 1.0, "top_k": 3}, id="top_k"),
    pytest.param({"temperature": 1.5, "top_p": 0.8}, id="top_p"),
    pytest.param({"temperature": 1.2, "top_k": 5, "top_p": 0.9}, id="both"),
]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("settings", TREES)
def test_outputs_are_those_of_plain_decoding(
    settings: SpecSettings, limits: dict[str, float]
) -> None:
    """A seed gives the same tokens with speculation and without, one by one."""
    sampling = _sampling(2000, **limits)

    assert torch.equal(_speculated(settings, sampling), _decoded(sampling))


@pytest.mark.parametrize("settings", TREES)
def test_each_request_has_its_own_way_of_sampling(settings: SpecSettings) -> None:
    """In one batch, some of it greedy, each request gets what it gets by plain decoding."""
    sampling = SamplingBatch(
        temperature=torch.tensor([0.0, 0.7, 1.0, 1.5]).repeat(60),
        seeds=torch.arange(240) * 11,
        positions=torch.full((240,), -1),
        top_k=torch.tensor([1, 3, 2**31]).repeat(80),
        top_p=torch.tensor([0.9, 1.0, 0.5, 0.7, 1.0]).repeat(48),
    )

    assert torch.equal(_speculated(settings, sampling), _decoded(sampling))
