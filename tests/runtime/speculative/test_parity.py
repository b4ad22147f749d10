"""Whatever is drafted, and whatever the host has of lengths: the target says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from backend_caps import Plan, Registry, Role, ServerFlags, discover, resolve
from backend_caps.runtime import Engine, EngineOptions, Sampling
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.model.random_models import first_layers, random_eagle
from backend_caps.runtime.speculation import Algorithm
from tests.cases import axis
from tests.runtime.composites import install, plan_of
from tests.runtime.engines import leaks, run
from tests.runtime.oracle import Job
from tests.runtime.speculative.grid import Mirror, Way, cover, make_engine
from tests.runtime.speculative.oracle import CONTEXT_LEN, Target, Targets

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

    assert (run(engine, target.jobs), leaks(engine)) == (target.tokens, (0, 0))


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

    assert run(engine, target.jobs) == target.tokens


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

    assert make_engine(targets, way).relay.host_seq_lens is way.relays


def _plan_with(backend: str, way: Way) -> Plan:
    """Resolve what a way's flags ask, of another backend."""
    arguments = [backend if word == "torch_padded" else word for word in way.arguments]
    registry, flags = discover(), ServerFlags.from_argv(arguments)
    rules = registry.rules("sglang-0.5.23")
    return resolve(registry.uses(flags), flags, rules=rules, policy="quiet")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Install the composites once."""
    return install(tmp_path_factory.mktemp("composites"))


@pytest.mark.parametrize("topk", [1, 2])
def test_multi_step_draft_containers_draft(registry: Registry, targets: Targets, topk: int) -> None:
    """A container runs each draft step, draft-extend and the draft's prompts on its parts."""
    target = targets.heedful
    plan = plan_of(
        registry,
        *("--attention-backend", "torch_padded", "--context-length", str(CONTEXT_LEN)),
        *("--speculative-draft-attention-backend", "multi_step_draft"),
        *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", str(topk)),
    )
    engine = Engine.from_plan(
        target.folder, plan, "cpu", draft_model_path=target.drafts[Algorithm.EAGLE]
    )

    assert run(engine, target.jobs) == target.tokens
    assert {use.backend for use in plan.uses if use.role is Role.DRAFT} == {
        "torch_native",
        "torch_padded",
    }


ALONE = EngineOptions(max_running_requests=1)
SIZES = [pytest.param(1, id="chains"), pytest.param(4, id="trees")]
LENGTHS = [
    pytest.param(Way(algorithm=Algorithm.EAGLE), 1.5, id="chains of a head"),
    pytest.param(Way(algorithm=Algorithm.EAGLE, topk=4), 1.9, id="trees of a head"),
    pytest.param(Way(algorithm=Algorithm.EAGLE3), 1.3, id="chains of an EAGLE3 head"),
    pytest.param(Way(algorithm=Algorithm.EAGLE3, topk=4), 1.6, id="trees of an EAGLE3 head"),
    pytest.param(Way(algorithm=Algorithm.STANDALONE), 1.5, id="chains of a small model"),
    pytest.param(Way(algorithm=Algorithm.STANDALONE, topk=4), 1.9, id="trees of a small model"),
    pytest.param(Way(algorithm=Algorithm.NGRAM), 1.25, id="chains of n-grams"),
    pytest.param(Way(algorithm=Algorithm.NGRAM, topk=4), 1.25, id="trees of n-grams"),
]


def _accept_lens(engine: Engine, jobs: Sequence[Job], sampling: Sampling) -> list[int]:
    """Run one job after the other, and count what each step gave, that its end cut none of."""
    counted: list[int] = []
    for number, job in enumerate(jobs):
        request = engine.submit(job.prompt, replace(sampling, seed=number))
        made: list[int] = []
        while not request.is_finished:
            made.append(len(engine.step()))
        _, *whole, _ = filter(None, made)  # the prompt's step, and the last one
        counted += whole
    return counted


GREEDY = Sampling(max_new_tokens=32, stop_token_ids=frozenset())
SAMPLED = replace(GREEDY, temperature=0.7, top_p=0.9)


def _some(target: Target) -> Sequence[Job]:
    """Take a dozen; of a forgetful target's those that repeat themselves."""
    return target.jobs[:24:2]


@axis(("way", "least"), LENGTHS)
@axis("sampling", [pytest.param(GREEDY, id="greedy"), pytest.param(SAMPLED, id="sampled")])
def test_drafts_are_accepted(targets: Targets, way: Way, least: float, sampling: Sampling) -> None:
    """A step of a draft that is often right gives well above one token."""
    engine = make_engine(targets, way, options=ALONE)

    assert mean(_accept_lens(engine, _some(targets.of(way.algorithm)), sampling)) > least


@axis("algorithm", Algorithm)
@axis("topk", SIZES)
def test_steps_accept_none_some_and_all(targets: Targets, algorithm: Algorithm, topk: int) -> None:
    """Of three drafts in a row, every number is accepted now and then."""
    engine = make_engine(targets, Way(algorithm=algorithm, topk=topk), options=ALONE)

    assert set(_accept_lens(engine, _some(targets.of(algorithm)), GREEDY)) == {1, 2, 3, 4}


@axis("num_steps", [1, 3, 5])
def test_draft_that_is_the_target_is_always_right(
    targets: Targets, tmp_path: Path, num_steps: int
) -> None:
    """All that a copy of the target drafts is accepted, step after step."""
    target = targets.heedful
    first_layers(tmp_path, target.folder, num_layers=3)
    way = Way(algorithm=Algorithm.STANDALONE, num_steps=num_steps)
    engine = Engine.from_plan(
        target.folder, way.plan, "cpu", options=ALONE, draft_model_path=tmp_path
    )

    assert set(_accept_lens(engine, _some(target), GREEDY)) == {num_steps + 1}


@axis("topk", SIZES)
def test_draft_that_is_always_wrong_changes_no_token(
    targets: Targets, tmp_path: Path, topk: int
) -> None:
    """A head with random weights costs time alone."""
    target = targets.heedful
    random_eagle(tmp_path, LlamaConfig.from_folder(target.folder))
    way = Way(algorithm=Algorithm.EAGLE, topk=topk)
    engine = Engine.from_plan(target.folder, way.plan, "cpu", draft_model_path=tmp_path)

    assert run(engine, target.jobs) == target.tokens
