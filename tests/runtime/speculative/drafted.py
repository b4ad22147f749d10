"""Made drafts and trees, and what is to become of them, written for the eye and not for speed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from backend_caps.runtime.speculation import num_candidates
from backend_caps.runtime.speculative.tree import (
    Beams,
    Candidates,
    DraftTree,
    best_tree,
    visible_nodes,
)

CPU = torch.device("cpu")
VOCAB = 9
_PROBABILITIES = (0.0, 0.125, 0.25, 0.25, 0.5, 0.5, 1.0)
"""Their products are exact, and often equal."""

RNGS = st.integers(0, 2**32).map(random.Random)
"""Where drafts and trees are drawn from."""

Draft = tuple[float, int]
"""A probability and a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What a draft model says of one request: for each step, of each beam its K children."""

    topk: int
    steps: Sequence[Sequence[Sequence[Draft]]]

    @classmethod
    def drawn(cls, rng: random.Random, topk: int, num_steps: int) -> Drafts:
        """Draw drafts; step 0's are of the root alone."""
        steps = [[_children(rng, topk) for _ in range(topk if i else 1)] for i in range(num_steps)]
        return cls(topk=topk, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One draft, and where it comes from."""

    score: float
    token: int
    parent: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """All candidates of one request, and each step's beams by their candidates' numbers."""

    candidates: Sequence[Candidate]
    beams: Sequence[Sequence[int]]

    @classmethod
    def of(cls, drafts: Drafts) -> Grown:
        """Let a tree grow, one candidate after the other."""
        candidates = [
            Candidate(score=p, token=t, parent=-1, depth=1) for p, t in drafts.steps[0][0]
        ]
        beams = [list(range(drafts.topk))]
        for depth, step in enumerate(drafts.steps[1:], start=2):
            first = len(candidates)
            for number, children in zip(beams[-1], step, strict=True):
                candidates += [
                    Candidate(
                        score=p * candidates[number].score, token=t, parent=number, depth=depth
                    )
                    for p, t in children
                ]
            beams.append(best(candidates, range(first, len(candidates)), drafts.topk))
        return cls(candidates=candidates, beams=beams)

    def path(self, number: int) -> set[int]:
        """Climb from a candidate to the root."""
        return set() if number < 0 else {number, *self.path(self.candidates[number].parent)}

    def tree(self, root: int, num_draft_tokens: int) -> HostTree:
        """Choose the best, and make them the nodes behind the root."""
        everyone = range(len(self.candidates))
        chosen = sorted(best(self.candidates, everyone, num_draft_tokens - 1))
        node_of = {-1: 0, **{number: node for node, number in enumerate(chosen, start=1)}}
        own = [self.candidates[number] for number in chosen]
        return HostTree(
            tokens=[root, *(candidate.token for candidate in own)],
            parents=[0, *(node_of[candidate.parent] for candidate in own)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTree:
    """One request's tree as lists."""

    tokens: Sequence[int]
    parents: Sequence[int]

    @classmethod
    def drawn(cls, rng: random.Random, num_nodes: int, num_steps: int) -> HostTree:
        """Draw a tree in which siblings differ and none is deeper than the steps allow."""
        tokens, parents, depths = [rng.randrange(VOCAB)], [0], [0]
        taken: set[tuple[int, int]] = set()
        while len(tokens) < num_nodes:
            parent, token = rng.randrange(len(tokens)), rng.randrange(VOCAB)
            if depths[parent] < num_steps and (parent, token) not in taken:
                taken.add((parent, token))
                tokens.append(token)
                parents.append(parent)
                depths.append(depths[parent] + 1)
        return cls(tokens=tokens, parents=parents)

    @classmethod
    def chain(cls, rng: random.Random, num_nodes: int) -> HostTree:
        """Draw a chain."""
        tokens = [rng.randrange(VOCAB) for _ in range(num_nodes)]
        return cls(tokens=tokens, parents=[max(node - 1, 0) for node in range(num_nodes)])

    def path(self, node: int) -> list[int]:
        """Climb from the root to a node."""
        return [0] if node == 0 else [*self.path(self.parents[node]), node]

    @property
    def depths(self) -> list[int]:
        """How far each is from the root."""
        return [len(self.path(node)) - 1 for node in range(len(self.tokens))]

    @property
    def visible(self) -> list[list[bool]]:
        """Which nodes each continues."""
        nodes = range(len(self.tokens))
        return [[other in self.path(node) for other in nodes] for node in nodes]

    def accepted(self, predicted: Sequence[int]) -> list[int]:
        """Walk from the root to the child that was predicted, until there is none."""
        path, found = [0], [0]
        while found:
            children = [n for n in range(1, len(self.tokens)) if self.parents[n] == path[-1]]
            found = [n for n in children if self.tokens[n] == predicted[path[-1]]]
            path += found
        return path


def tree_of(trees: Sequence[HostTree], num_steps: int, *, is_chain: bool = False) -> DraftTree:
    """Bring trees to the device."""
    parents = torch.tensor([tree.parents for tree in trees])
    return DraftTree(
        tokens=torch.tensor([tree.tokens for tree in trees]),
        parents=parents,
        depths=torch.tensor([tree.depths for tree in trees]),
        visible=None if is_chain else visible_nodes(parents, num_steps),
    )


def step_of(
    batch: Sequence[Drafts], step: int, device: torch.device = CPU
) -> tuple[Tensor, Tensor]:
    """Bring one step's drafts to the device: of the root alone at step 0, else of each beam."""
    drafted = torch.tensor([drafts.steps[step] for drafts in batch], dtype=torch.float64)
    topk_p, topk_index = drafted.unbind(dim=-1)
    if step == 0:
        topk_p, topk_index = topk_p.squeeze(1), topk_index.squeeze(1)
    return topk_p.to(device, torch.float32), topk_index.to(device, torch.int64)


def grow(batch: Sequence[Drafts], device: torch.device = CPU) -> tuple[Candidates, list[Beams]]:
    """Run all draft steps of a batch, and keep the beams of each forward."""
    candidates, forwards = Candidates.start(*step_of(batch, 0, device)), []
    for step in range(1, len(batch[0].steps)):
        forwards.append(candidates.beams())
        candidates = candidates.grown(forwards[-1], *step_of(batch, step, device))
    return candidates, forwards


def tree_from(
    batch: Sequence[Drafts], num_draft_tokens: int, device: torch.device = CPU
) -> DraftTree:
    """Run all draft steps, and make the tree; roots are numbered."""
    candidates, _ = grow(batch, device)
    return best_tree(candidates, torch.arange(len(batch), device=device), num_draft_tokens)


def laid_out(visible: Tensor, lengths: Sequence[int]) -> list[bool]:
    """Write the mask down entry after entry; who is shorter than the tree sees all it has."""
    entries: list[bool] = []
    num_places = visible.shape[2]
    for own, length in zip(visible.tolist(), lengths, strict=True):
        for row in own:
            before = max(length - num_places, 0)
            entries += [True] * before + (row if length >= num_places else [True] * length)
    return entries


def any_size(rng: random.Random, topk: int, num_steps: int) -> int:
    """Draw a number of draft tokens that settings allow."""
    if topk == 1:
        return num_steps + 1
    return rng.randint(num_steps + 1, num_candidates(topk, num_steps) + 1)


def best(candidates: Sequence[Candidate], numbers: Sequence[int], count: int) -> list[int]:
    """Number the best ones, of equal ones the first."""
    return sorted(numbers, key=lambda number: (-candidates[number].score, number))[:count]


def _children(rng: random.Random, topk: int) -> list[Draft]:
    tokens = rng.sample(range(VOCAB), topk)
    return [(rng.choice(_PROBABILITIES), token) for token in tokens]
