"""From a plan to what speculates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend_caps import BatchKind, Phase, Role
from backend_caps.relay import DraftShape
from backend_caps.runtime.assembly import Parts, load_draft
from backend_caps.runtime.configuration import configuration_of
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.options import EngineOptions, graph_sizes_of
from backend_caps.runtime.speculation import Algorithm
from backend_caps.runtime.speculative.drafter import ModelDrafter
from backend_caps.runtime.speculative.runner import SpeculativeRunner
from tests.runtime.speculative.redrafted import VOCAB_SIZE, Models, drafting_plan, settings_of

HIDDEN_SIZE = 64
MODELS = (Algorithm.EAGLE, Algorithm.EAGLE3, Algorithm.STANDALONE)


@pytest.mark.parametrize("algorithm", MODELS)
def test_drafts_of_a_model_need_one(algorithm: Algorithm, models: Models) -> None:
    """Without a folder the algorithm is refused, and told where one is named."""
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
