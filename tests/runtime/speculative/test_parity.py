"""Whatever is drafted, and whatever the host has of lengths: the target says the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend_caps import Plan, ServerFlags, discover, resolve
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.random_models import first_layers
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.speculation import Algorithm
from tests.cases import axis
from tests.runtime.engines import leaks, run
from tests.runtime.speculative.grid import Mirror, Way, cover, make_engine
from tests.runtime.speculative.oracle import Targets

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

WAYS = [pytest.param(way, id=str(way)) for way in cover()]
# Prompts come a few tokens at a time, so that most steps are mixed where steps are.
STEADY = EngineOptions(chunked_prefill_size=8)
OVERLAPPED = [pytest.param(True, id="overlapped"), pytest.param(False, id="plain")]


@axis("way", WAYS)
def test_speculated_tokens_equal_those_of_transformers(
    targets: Targets, device: torch.device, way: Way
) -> None:
    """Every algorithm, tree, mirror and loop gives the tokens of 40 prompts by transformers."""
    target = targets.of(way.algorithm)
    engine = make_engine(targets, way, device=device)

    tokens = run(engine, target.jobs)

    assert (tokens, leaks(engine)) == (target.tokens, (0, 0))


@axis("mixed", [pytest.param(False, id="not mixed"), pytest.param(True, id="mixed")])
@axis("num_steps", [1, 3])
def test_bounds_that_are_just_reached_cut_nothing_off(
    targets: Targets, tmp_path: Path, num_steps: int, mixed: bool
) -> None:
    """Where every draft is right, lengths are what bounds allow, and attention still sees all."""
    target, way = targets.heedful, Way(algorithm=Algorithm.STANDALONE, num_steps=num_steps)
    way = replace(way, mirror=Mirror.UPPER_BOUND, mixed=mixed)
    first_layers(tmp_path, target.folder, num_layers=3)
    engine = Engine.from_plan(
        target.folder, way.plan, "cpu", options=STEADY, draft_model_path=tmp_path
    )

    tokens = run(engine, target.jobs)

    assert tokens == target.tokens


@pytest.mark.slow
def test_flex_attention_drafts_and_verifies_trees(targets: Targets, device: torch.device) -> None:
    """Trees of this plugin give transformers' tokens; uncompiled, for that takes a minute here."""
    way = Way(algorithm=Algorithm.STANDALONE, topk=2, num_steps=2, page_size=4)
    target, draft = targets.heedful, targets.heedful.drafts[Algorithm.STANDALONE]
    plan = _plan_with("flex_attention", way)

    with (
        torch.compiler.set_stance("force_eager"),
        Engine.from_plan(target.folder, plan, device, draft_model_path=draft) as engine,
    ):
        tokens = run(engine, target.jobs[:10])

    assert (tokens, leaks(engine)) == (target.tokens[:10], (0, 0))


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("mirror", Mirror)
@pytest.mark.parametrize("overlapped", OVERLAPPED)
def test_ways_of_the_grid_relay_what_they_say(
    targets: Targets, algorithm: Algorithm, mirror: Mirror, overlapped: bool
) -> None:
    """An engine's relay brings to the host what its way says, so that the grid holds all modes."""
    way = Way(algorithm=algorithm, mirror=mirror, overlapped=overlapped)

    engine = make_engine(targets, way)

    assert engine.relay.host_seq_lens is way.relays


def _plan_with(backend: str, way: Way) -> Plan:
    """Resolve what a way's flags ask, of another backend."""
    arguments = [backend if word == "torch_padded" else word for word in way.arguments]
    registry, flags = discover(), ServerFlags.from_argv(arguments)
    rules = registry.rules("sglang-0.5.23")
    return resolve(registry.uses(flags), flags, rules=rules, policy="quiet")
