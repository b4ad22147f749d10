"""From a plan to what speculates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend_caps import BatchKind, Phase, Role
from backend_caps.relay import DraftShape
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.configuration import configuration_of
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.memory import Pools, make_pools
from backend_caps.runtime.model.llama import load_llama
from backend_caps.runtime.options import EngineOptions, graph_sizes_of
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.drafter import ModelDrafter
from backend_caps.runtime.speculative.drafting import Drafting, load_draft, make_drafting
from backend_caps.runtime.staging import Staging
from tests.runtime.engines import plan_of
from tests.runtime.speculative.redrafted import VOCAB_SIZE, Models, write_models

PADDED = ("--attention-backend", "torch_padded", "--context-length", "64")
HIDDEN_SIZE = 64


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Write a target and its drafts once."""
    return write_models(tmp_path_factory.mktemp("models"))


def _plan(algorithm: str, *arguments: str) -> Plan:
    return plan_of(*PADDED, "--speculative-algorithm", algorithm, *arguments)


def _settings(plan: Plan) -> SpecSettings:
    settings = SpecSettings.from_flags(plan.flags)
    assert settings is not None, "an algorithm is named"
    return settings


def _drafting(models: Models, plan: Plan, draft: Path | None) -> tuple[Drafting, Pools]:
    """Make what drafts for the target, and the target's pools."""
    settings, options = _settings(plan), EngineOptions()
    target = load_llama(models.target, torch.device("cpu"), num_positions=64)
    model = load_draft(settings, target, draft)
    configuration = configuration_of(plan, models.target, device="cpu", draft_model_path=draft)
    staging = Staging(configuration.streams)
    _, pools = make_pools(plan, target, options, staging, settings.lookahead)
    drafting = make_drafting(
        configuration,
        settings,
        target,
        model,
        pools,
        staging,
        forward_stream=staging.streams.current_stream(),
    )
    return drafting, pools


@pytest.mark.parametrize("name", ["EAGLE", "EAGLE3", "STANDALONE"])
def test_drafts_of_a_model_need_one(name: str, models: Models) -> None:
    """Without a folder the algorithm is refused, and told where one is named."""
    plan = _plan(name)
    algorithm = _settings(plan).algorithm.value

    with pytest.raises(EngineError) as refused:
        Engine.from_plan(models.target, plan, "cpu")

    assert f"--speculative-algorithm {algorithm} drafts with a model" in str(refused.value)
    assert "Engine(..., draft_model_path=...)" in str(refused.value)


@pytest.mark.parametrize("name", ["EAGLE", "NGRAM"])
def test_trees_have_no_more_branches_than_the_model_has_tokens(name: str, models: Models) -> None:
    """Siblings differ, so there are at most as many as tokens; one less is taken."""
    plan = plan_of(
        *("--attention-backend", "torch_padded", "--speculative-algorithm", name),
        *("--speculative-eagle-topk", str(VOCAB_SIZE + 1), "--speculative-num-steps", "1"),
    )

    with pytest.raises(EngineError, match=f"is {VOCAB_SIZE + 1}; at most the model's"):
        _drafting(models, plan, None)


@pytest.mark.parametrize(
    ("algorithm", "shape"),
    [
        pytest.param(
            Algorithm.EAGLE,
            DraftShape(topk=2, hidden_size=HIDDEN_SIZE, dtype=torch.float32, accept_tokens=4),
            id="a head",
        ),
        pytest.param(
            Algorithm.EAGLE3,
            DraftShape(topk=2, hidden_size=HIDDEN_SIZE, dtype=torch.float32, accept_tokens=4),
            id="a head of several layers",
        ),
        pytest.param(Algorithm.STANDALONE, DraftShape(topk=2, accept_tokens=4), id="a small model"),
    ],
)
def test_relay_carries_what_a_draft_model_goes_on_from(
    algorithm: Algorithm, shape: DraftShape, models: Models
) -> None:
    """Candidates of each, and of a head the state that it continues."""
    plan = _plan(algorithm.value, "--speculative-eagle-topk", "2")

    drafting, _ = _drafting(models, plan, models.drafts[algorithm])
    configuration = configuration_of(
        plan, models.target, device="cpu", draft_model_path=models.drafts[algorithm]
    )

    assert drafting.shape == configuration.draft == shape
    assert isinstance(drafting.drafter, ModelDrafter)


@pytest.mark.parametrize(
    ("topk", "kind", "num_tokens"),
    [
        pytest.param(1, BatchKind.UNIFORM_BATCH, 4, id="chain"),
        pytest.param(2, BatchKind.UNIFORM_BATCH, 8, id="tree"),
    ],
)
def test_sizes_of_a_speculating_engine_are_of_verifies_too(
    topk: int, kind: BatchKind, num_tokens: int
) -> None:
    """Each request of a verify brings a tree; the sizes of other phases are those named."""
    settings = _settings(_plan("EAGLE", "--speculative-eagle-topk", str(topk)))
    options = EngineOptions(graph_batch_sizes=(1, 2, 8), max_running_requests=4)

    buckets = graph_sizes_of(options, settings)[Role.TARGET].buckets

    assert {phase: own for phase, own in buckets.items() if phase is not Phase.VERIFY} == (
        graph_sizes_of(options)[Role.TARGET].buckets
    )
    sizes = [(own.kind, own.batch_size, own.num_tokens) for own in buckets[Phase.VERIFY]]
    assert sizes == [(kind, count, count * num_tokens) for count in (1, 2, 4)]


def test_batches_above_the_largest_graph_are_captured_for_nothing() -> None:
    """A bound on graphs goes before the number of requests, in decode and in verify."""
    options = EngineOptions(
        graph_batch_sizes=(1, 2, 8), max_running_requests=4, max_graph_batch_size=3
    )

    settings = _settings(_plan("EAGLE", "--speculative-eagle-topk", "1"))

    buckets = graph_sizes_of(options, settings)[Role.TARGET].buckets

    sizes = {phase: [own.batch_size for own in buckets[phase]] for phase in buckets}
    assert sizes == {Phase.DECODE: [1, 2, 3], Phase.PREFILL: [], Phase.VERIFY: [1, 2, 3]}
