"""Drafts that are looked up on the host, in tokens that requests have made."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from backend_caps import BatchKind, Phase, Role
from backend_caps.relay import DraftShape, RelayPayload
from backend_caps.runtime import Engine, EngineError, EngineOptions, Request, configuration_of
from backend_caps.runtime.assembly import Parts, load_draft
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.runtime.options import graph_sizes_of
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative import ngram
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.drafter import ModelDrafter
from backend_caps.runtime.speculative.ngram import NgramDrafter, NgramIndex
from backend_caps.runtime.speculative.runner import SpeculativeRunner
from backend_caps.runtime.speculative.tree import Accepted, DraftTree
from backend_caps.simulator import simulate
from tests.runtime.engines import PLAIN_LOOP, plan_of
from tests.runtime.memories import enter, make_memory, make_request
from tests.runtime.observed import Kept
from tests.runtime.speculative.drafted import HostTree
from tests.runtime.speculative.redrafted import (
    VOCAB_SIZE,
    Models,
    Watch,
    drafting_plan,
    settings_of,
)

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


_MAX_MATCH = 12
_MAX_RECENT = 8
_SETTINGS = SpecSettings(algorithm=Algorithm.NGRAM, topk=4, num_steps=5, num_draft_tokens=32)
_RANDOM = random.Random(0)  # noqa: S311 - a text, no secret
_NOISE = [_RANDOM.randrange(50) for _ in range(8000)]

_TEXTS = [
    pytest.param(lambda _: 7, id="one token"),
    pytest.param(lambda place: place % 40, id="a period"),
    pytest.param(lambda place: _NOISE[place], id="noise"),
]


class _Counted(int):
    """A token that counts how often any is hashed or compared."""

    num_looks: ClassVar[int] = 0

    def __hash__(self) -> int:
        _Counted.num_looks += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        _Counted.num_looks += 1
        return int.__eq__(self, other)


def _looks(act: Callable[[], object]) -> int:
    before = _Counted.num_looks
    act()
    return _Counted.num_looks - before


def _text(word: Callable[[int], int], length: int) -> list[int]:
    return [_Counted(word(place)) for place in range(length)]


def _index(text: list[int]) -> NgramIndex:
    index = NgramIndex(max_match=_MAX_MATCH, max_recent=_MAX_RECENT)
    index.extend(text)
    return index


def _draft_looks(index: NgramIndex) -> int:
    return _looks(partial(index.draft, _SETTINGS))


@pytest.mark.parametrize("word", _TEXTS)
def test_draft_looks_at_a_bounded_number_of_tokens(word: Callable[[int], int]) -> None:
    """A draft after 8000 tokens looks at no more than its limits allow after any number."""
    num_looks = _draft_looks(_index(_text(word, 8000)))

    # A look-up hashes and compares; a node is hashed once more to be stored.
    most = 2 * _MAX_MATCH * (1 + _MAX_RECENT * _SETTINGS.num_steps) + 3 * _SETTINGS.num_draft_tokens
    assert 0 < num_looks <= most


@pytest.mark.parametrize("word", _TEXTS)
def test_append_looks_at_a_bounded_number_of_tokens(word: Callable[[int], int]) -> None:
    """No token of 8000 costs more than a look-up and a store for each length of a suffix."""
    index = _index([])

    looks = [_looks(partial(index.extend, [token])) for token in _text(word, 8000)]

    assert 0 < max(looks) <= 3 * _MAX_MATCH


@pytest.mark.parametrize("word", _TEXTS[:2])
def test_draft_of_a_repeated_text_costs_the_same_at_any_length(word: Callable[[int], int]) -> None:
    """Eight times the context takes as many looks for the next draft."""
    short, long = _index(_text(word, 1000)), _index(_text(word, 8000))

    looks = [_draft_looks(short), _draft_looks(long)]

    assert looks[0] == looks[1]


HIDDEN_SIZE = 64
MODELS = (Algorithm.EAGLE, Algorithm.EAGLE3, Algorithm.STANDALONE)


@pytest.mark.parametrize("algorithm", MODELS)
def test_drafts_of_a_model_need_one(algorithm: Algorithm, models: Models) -> None:
    """Without a folder the algorithm is refused, with where one is named."""
    with pytest.raises(EngineError) as refused:
        Engine.from_plan(models.target, drafting_plan(algorithm), "cpu")

    assert f"--speculative-algorithm {algorithm.value} drafts with a model" in str(refused.value)
    assert "Engine(..., draft_model_path=...)" in str(refused.value)


@pytest.mark.parametrize("algorithm", [Algorithm.EAGLE, Algorithm.NGRAM])
def test_trees_have_no_more_branches_than_the_model_has_tokens(
    algorithm: Algorithm, models: Models
) -> None:
    """Siblings differ, so there are at most as many as tokens; one less is taken."""
    settings = settings_of(drafting_plan(algorithm, topk=VOCAB_SIZE + 1))
    target = load_llama(models.target, torch.device("cpu"), num_positions=64)

    with pytest.raises(EngineError, match=f"is {VOCAB_SIZE + 1}; at most the model's"):
        load_draft(settings, target, None)


@pytest.mark.parametrize("algorithm", MODELS)
def test_relay_carries_what_a_draft_model_goes_on_from(
    algorithm: Algorithm, models: Models
) -> None:
    """Candidates of each, and of a head the state that it continues."""
    plan, shape = drafting_plan(algorithm, topk=2), DraftShape(topk=2, accept_tokens=4)
    if algorithm is not Algorithm.STANDALONE:
        shape = replace(shape, hidden_size=HIDDEN_SIZE, dtype=torch.float32)

    draft = models.drafts[algorithm]
    configuration = configuration_of(plan, models.target, device="cpu", draft_model_path=draft)
    parts = Parts(configuration, EngineOptions(), models.target, draft, None)

    assert configuration.draft == shape
    assert isinstance(parts.runner, SpeculativeRunner)
    assert isinstance(parts.runner.drafter, ModelDrafter)


@pytest.mark.parametrize(("topk", "num_tokens"), [(1, 4), (2, 8)], ids=["chain", "tree"])
def test_sizes_of_a_speculating_engine_are_of_verifies_too(topk: int, num_tokens: int) -> None:
    """Each request of a verify brings a tree; the sizes of other phases are those named."""
    settings = settings_of(drafting_plan(Algorithm.EAGLE, topk=topk))
    options = EngineOptions(graph_batch_sizes=(1, 2, 8), max_running_requests=4)

    buckets = graph_sizes_of(options, settings)[Role.TARGET].buckets

    assert {phase: own for phase, own in buckets.items() if phase is not Phase.VERIFY} == (
        graph_sizes_of(options)[Role.TARGET].buckets
    )
    sizes = [(own.kind, own.batch_size, own.num_tokens) for own in buckets[Phase.VERIFY]]
    kind = BatchKind.UNIFORM_BATCH
    assert sizes == [(kind, count, count * num_tokens) for count in (1, 2, 4)]


def test_batches_above_the_largest_graph_are_captured_for_nothing() -> None:
    """A bound on graphs goes before the number of requests, in decode and in verify."""
    options = EngineOptions(
        graph_batch_sizes=(1, 2, 8), max_running_requests=4, max_graph_batch_size=3
    )

    settings = settings_of(drafting_plan(Algorithm.EAGLE))

    buckets = graph_sizes_of(options, settings)[Role.TARGET].buckets

    sizes = {phase: [own.batch_size for own in buckets[phase]] for phase in buckets}
    assert sizes == {Phase.DECODE: [1, 2, 3], Phase.PREFILL: [], Phase.VERIFY: [1, 2, 3]}
