"""Drafts that are looked up on the host, in tokens that requests have made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from backend_caps.relay import RelayPayload
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Request
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative import ngram
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.ngram import NgramDrafter, NgramIndex
from backend_caps.runtime.speculative.tree import Accepted, DraftTree
from backend_caps.simulator import simulate
from tests.runtime.engines import PLAIN_LOOP, plan_of
from tests.runtime.memories import enter, make_memory, make_request
from tests.runtime.observed import Kept
from tests.runtime.speculative.drafted import HostTree
from tests.runtime.speculative.redrafted import Watch

CHAIN = SpecSettings(algorithm=Algorithm.NGRAM, topk=1, num_steps=3, num_draft_tokens=4)
TREE = SpecSettings(algorithm=Algorithm.NGRAM, topk=2, num_steps=3, num_draft_tokens=6)
PROMPT = (4, 5, 6, 7, 4, 5, 9, 4, 5)
NOTHING = torch.zeros(0)


class Scene:
    """Requests with rows, and who drafts for them."""

    def __init__(self, settings: SpecSettings = CHAIN, device: str = "cpu") -> None:
        self.settings = settings
        self.memory: RequestMemory
        self.memory = make_memory(device)
        self.drafter = NgramDrafter(settings, self.memory.staging)

    def request(self, number: int, prompt: Sequence[int] = PROMPT) -> Request:
        """Make a request that has a row."""
        request = make_request(number, prompt, max_new_tokens=40)
        enter(self.memory, request)
        return request

    def draft(self, *requests: Request) -> DraftTree:
        """Draft for a batch of requests."""
        batch = ScheduleBatch.empty(self.memory)
        batch.requests = requests
        return self.drafter.tree(batch, self.contexts(batch))

    def contexts(self, batch: ScheduleBatch) -> Contexts:
        """Return what a step finds, of which these drafts read nothing."""
        return Contexts.of_step(batch, self.memory.rows.req_to_token)


def _anew(settings: SpecSettings, tokens: Sequence[int]) -> HostTree:
    """Draft with an index that is made of tokens at once."""
    index = NgramIndex()
    index.extend(tokens)
    tree = index.draft(settings)
    return HostTree(tokens=tree.tokens, parents=tree.parents)


@pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])
def test_drafts_are_those_of_each_request(settings: SpecSettings) -> None:
    """A request's tree is made of its own tokens, in the batch's order."""
    scene = Scene(settings)
    requests = [scene.request(1), scene.request(2, (8, 8, 8)), scene.request(3, (1,))]

    tree = scene.draft(*requests)

    expected = [_anew(settings, own.prompt) for own in requests]
    assert tree.tokens.tolist() == [own.tokens for own in expected]
    assert tree.parents.tolist() == [own.parents for own in expected]
    assert tree.depths.tolist() == [own.depths for own in expected]


def test_index_is_made_once_and_reads_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step costs as much as it was given, not as much as the context is long."""
    read: list[Sequence[int]] = []

    class Noted(NgramIndex):
        def extend(self, tokens: Sequence[int]) -> None:
            read.append(tuple(tokens))
            super().extend(tokens)

    monkeypatch.setattr(ngram, "NgramIndex", Noted)
    scene = Scene()
    request = scene.request(1)

    for made in ([], [6], [7, 4]):
        request.output += made
        scene.draft(request)

    assert read == [PROMPT, (), (6,), (7, 4)]


def test_index_forgets_who_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not in a step has no index any more; coming back it is made of all that it has."""
    made: list[NgramIndex] = []

    class Noted(NgramIndex):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(ngram, "NgramIndex", Noted)
    scene = Scene()
    one, other = scene.request(1), scene.request(2)

    for batch in ((one, other), (other,), (one, other)):
        one.output.append(6)
        scene.draft(*batch)

    assert len(made) == 3
    assert len(made[-1]) == len(PROMPT) + 3


def test_drafts_of_the_host_leave_their_tokens_alone() -> None:
    """There is no draft model: no state is handed on, and the verify's reads are the last."""
    scene = Scene()
    fields = ("path", "accept_lens", "tokens", "bonus_tokens")
    accepted = Accepted(**dict.fromkeys(fields, NOTHING))
    contexts = scene.contexts(ScheduleBatch.empty(scene.memory))
    mark = scene.memory.staging.streams.event()

    payload, reads_done = scene.drafter.follow_accepted(contexts, accepted, NOTHING, mark)

    assert (payload, reads_done) == (RelayPayload(NOTHING), mark)


def test_drafts_of_the_host_cross_at_once_and_never_wait() -> None:
    """All trees of a batch are one upload, of three numbers a node."""
    with simulate("lazy") as simulation:
        scene = Scene(CHAIN, "sim")
        requests = [scene.request(1), scene.request(2)]
        before = simulation.counts

        scene.draft(*requests)

        spent = simulation.counts - before
        assert (spent.num_host_waits, spent.num_copies_to_device) == (0, 1)
        assert spent.bytes_to_device == 2 * 3 * CHAIN.num_draft_tokens * 8


@pytest.mark.parametrize("settings", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("way", [(), PLAIN_LOOP], ids=["overlapped", "plain loop"])
def test_drafts_of_an_engine_continue_all_that_it_made(
    settings: SpecSettings, way: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through chunks, mixed steps and retractions a tree is that of the tokens up to its root."""
    random_llama(tmp_path, vocab_size=31, num_layers=1, max_position_embeddings=96)
    watch, kept = Watch.over(monkeypatch), Kept()
    plan = plan_of(
        *("--attention-backend", "torch_padded", "--context-length", "64", "--enable-mixed-chunk"),
        *("--speculative-algorithm", "NGRAM", "--speculative-eagle-topk", str(settings.topk)),
        *("--speculative-num-draft-tokens", str(settings.num_draft_tokens), *way),
    )
    options = EngineOptions(
        chunked_prefill_size=7, max_running_requests=5, max_total_tokens=72, graph_batch_sizes=()
    )
    engine = Engine.from_plan(tmp_path, plan, "cpu", options=options, observer=kept)
    engine.generate([[7 * place % 31, 3] * place for place in range(1, 10)], 14)

    expected = [_anew(settings, own.read) for own in watch.kept]

    assert len(expected) > 20
    assert [own.tree for own in watch.kept] == expected
    assert sum(step.num_retracted for step in kept.steps) > 0
