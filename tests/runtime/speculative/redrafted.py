"""Drafts made the slow way: a model that reads all tokens anew for each draft, and keeps nothing.

What an engine keeps between steps, of keys and values, positions and hidden states, may be wrong
without a wrong token: the drafts are refused then, and steps are only slow. So the drafted trees
are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend_caps import Plan
from backend_caps.runtime import Request
from backend_caps.runtime.assembly import load_draft
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.model.random_models import (
    CausalContext,
    eagle3_of,
    eagle_of,
    first_layers,
    random_llama,
)
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.drafter import ModelDrafter
from backend_caps.runtime.speculative.ngram import NgramDrafter
from backend_caps.runtime.speculative.tree import DraftTree
from tests.runtime.engines import plan_of
from tests.runtime.speculative.drafted import Draft, Drafts, Grown, HostTree

D = TypeVar("D")
Tree = Callable[[D, ScheduleBatch, Contexts], DraftTree]
"""A drafter's way to draft."""
VOCAB_SIZE = 61
_STATES_GAIN = 0.001
"""Of a head's weights of states, beside those of tokens: enough for states to matter, and little
enough for drafts to be right at times."""
_NORM_GAIN = 0.02
"""Of the norm through which an EAGLE3 head reads states, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Folders of a target and its drafts, which are often right and often wrong."""

    target: Path
    drafts: dict[Algorithm, Path]


def write_models(folder: Path) -> Models:
    """Write a target, a small model of its first layer, and a head that reads its states.

    The head that is made of a target goes by tokens alone; this one goes by states too, so that
    a wrong state makes a wrong draft.
    """
    target, head, small = folder / "target", folder / "head", folder / "small"
    eagle3 = folder / "eagle3"
    random_llama(
        target, vocab_size=VOCAB_SIZE, num_layers=3, later_gain=0.2, max_position_embeddings=96
    )
    first_layers(small, target)
    eagle_of(head, target)
    weights = load_file(head / "model.safetensors")
    tokens, states = weights["fc.weight"].chunk(2, dim=1)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(states.shape, generator=generator) * _STATES_GAIN
    weights["fc.weight"] = torch.cat([tokens, noise], dim=1)
    save_file(weights, head / "model.safetensors", metadata={"format": "pt"})
    eagle3_of(eagle3, target)
    weights = load_file(eagle3 / "model.safetensors")
    weights["layers.0.hidden_norm.weight"].fill_(_NORM_GAIN)
    save_file(weights, eagle3 / "model.safetensors", metadata={"format": "pt"})
    return Models(
        target=target,
        drafts={Algorithm.EAGLE: head, Algorithm.EAGLE3: eagle3, Algorithm.STANDALONE: small},
    )


def drafting_plan(algorithm: Algorithm, *arguments: str, topk: int = 1) -> Plan:
    """Resolve a server that drafts in three steps, unless the arguments say another number."""
    return plan_of(
        *("--attention-backend", "torch_padded", "--context-length", "64"),
        *("--speculative-algorithm", algorithm.value, "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", str(topk), *arguments),
    )


def settings_of(plan: Plan) -> SpecSettings:
    """Read how a server speculates."""
    settings = SpecSettings.from_flags(plan.flags)
    assert settings is not None, "an algorithm is named"
    return settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """One request's tree, and the length of the context that it was drafted behind."""

    request: Request
    length: int
    tree: HostTree

    @property
    def is_of_output(self) -> bool:
        """Whether its root is a token that the request kept."""
        return self.length < len(self.request.prompt) + len(self.request.output)

    @property
    def read(self) -> Sequence[int]:
        """The tokens up to its root, which are known when all has run."""
        return (*self.request.prompt, *self.request.output)[: self.length + 1]


@dataclass
class Watch:
    """What was drafted, step after step."""

    drafted: list[Drafted] = field(default_factory=list)

    @classmethod
    def over(cls, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Watch whoever drafts."""
        watch = cls()
        for drafter in (ModelDrafter, NgramDrafter):
            monkeypatch.setattr(drafter, "tree", watch.watched(drafter.tree))
        return watch

    def watched(self, tree: Tree[D]) -> Tree[D]:
        """Let a way to draft be watched."""

        def watched(drafter: D, batch: ScheduleBatch, contexts: Contexts) -> DraftTree:
            drafts = tree(drafter, batch, contexts)
            self.add(batch, contexts, drafts)
            return drafts

        return watched

    def add(self, batch: ScheduleBatch, contexts: Contexts, drafts: DraftTree) -> None:
        """Write a step's trees down."""
        lists = (contexts.seq_lens.tolist(), drafts.tokens.tolist(), drafts.parents.tolist())
        for request, length, tokens, parents in zip(batch.requests, *lists, strict=True):
            tree = HostTree(tokens=tokens, parents=parents)
            self.drafted.append(Drafted(request=request, length=length, tree=tree))

    @property
    def kept(self) -> Sequence[Drafted]:
        """Trees whose root is part of an output: behind its end a step goes on, and is dropped."""
        return [own for own in self.drafted if own.is_of_output]

    @property
    def num_accepted(self) -> Sequence[int]:
        """How many tokens each step added to its context, those of each request's last aside."""
        return [later.length - own.length for own, later in self._neighbours()]

    def _neighbours(self) -> Iterator[tuple[Drafted, Drafted]]:
        """Pair each tree with the next one of its request."""
        last: dict[int, Drafted] = {}
        for own in self.kept:
            before = last.get(own.request.number)
            if before is not None and before.length < own.length:
                yield before, own
            last[own.request.number] = own


class SlowDrafter:
    """Draft without keeping anything.

    Args:
        models: folders of the target and its drafts.
        settings: how large a tree is.
    """

    def __init__(self, models: Models, settings: SpecSettings) -> None:
        self._settings = settings
        self._target = load_llama(models.target, "cpu")
        draft = load_draft(settings, self._target, models.drafts[settings.algorithm])
        assert draft is not None, "a model drafts"
        self._draft = draft

    @torch.inference_mode()
    def tree(self, read: Sequence[int]) -> HostTree:
        """Draft behind tokens, of which the last one is the root."""
        own, topk = self._settings, self._settings.topk
        known = self._target_states(read[:-1]) if self._draft.reads_hidden else None
        steps: list[list[list[Draft]]] = [[self._children(read, (), known)]]
        while len(steps) < own.num_steps:
            grown = Grown.of(Drafts(topk=topk, steps=steps))
            paths = [_tokens_to(grown, number) for number in grown.beams[-1]]
            steps.append([self._children(read, path, known) for path in paths])
        grown = Grown.of(Drafts(topk=topk, steps=steps))
        return grown.tree(read[-1], own.num_draft_tokens)

    def _children(
        self, read: Sequence[int], path: Sequence[int], known: Tensor | None
    ) -> list[Draft]:
        """Ask the draft model what follows some drafts."""
        state = self._state(read, path, known)
        best = self._draft.logits(state[None]).softmax(dim=-1).topk(self._settings.topk)
        tokens = self._draft.target_ids(best.indices[0])
        return list(zip(best.values[0].tolist(), tokens.tolist(), strict=True))

    def _state(self, read: Sequence[int], path: Sequence[int], known: Tensor | None) -> Tensor:
        """Return the draft model's last state, when it has read all tokens and some drafts."""
        if known is None:
            return self._run((*read, *path), None)[-1]
        states = known
        for end in range(len(path)):
            states = torch.cat((states, self._state(read, path[:end], known)[None]))
        return self._run((*read[1:], *path), states)[-1]

    def _run(self, tokens: Sequence[int], hidden: Tensor | None) -> Tensor:
        ids = torch.tensor(tokens)
        return self._draft.hidden_states(ids, torch.arange(len(tokens)), hidden, CausalContext())

    def _target_states(self, tokens: Sequence[int]) -> Tensor:
        joined = self._target.hidden_states(
            torch.tensor(tokens), torch.arange(len(tokens)), CausalContext()
        )
        return self._draft.fuse(joined[:, -self._draft.num_features :])


def _tokens_to(grown: Grown, number: int) -> Sequence[int]:
    """List the drafts from the root's child to a candidate."""
    if number < 0:
        return ()
    own = grown.candidates[number]
    return (*_tokens_to(grown, own.parent), own.token)
