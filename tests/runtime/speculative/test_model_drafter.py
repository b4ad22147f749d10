"""Drafts of models, beside those of a model that keeps nothing from one step to the next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from backend_caps.runtime import Engine, EngineOptions
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from tests.cases import axis
from tests.runtime.engines import PLAIN_LOOP, leaks
from tests.runtime.observed import Kept
from tests.runtime.speculative.redrafted import (
    VOCAB_SIZE,
    Models,
    SlowDrafter,
    Watch,
    drafting_plan,
)

MAX_NEW_TOKENS = 12
SHAPES = {"chain": (1, 3, 4), "tree": (2, 3, 7), "wide tree": (4, 2, 6), "one step": (3, 1, 4)}
"""K, S and N."""
MODELS = (Algorithm.EAGLE, Algorithm.EAGLE3, Algorithm.STANDALONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How an engine runs what it is asked."""

    arguments: Sequence[str] = ()
    options: EngineOptions | None = None


ROOMY = Way(arguments=("--disable-piecewise-cuda-graph",))
PLAIN = Way(arguments=PLAIN_LOOP, options=EngineOptions(chunked_prefill_size=6))
CROWDED = Way(
    arguments=("--enable-mixed-chunk", "--page-size", "4"),
    options=EngineOptions(chunked_prefill_size=7, max_running_requests=5, max_total_tokens=92),
)
"""Prompts in chunks, decode rows mixed into them, and retractions."""
HALVES = Way(arguments=("--enable-two-batch-overlap",))
WAYS = {"roomy": ROOMY, "plain loop": PLAIN, "crowded": CROWDED, "halves": HALVES}


@cache
def _prompts() -> Sequence[Sequence[int]]:
    """Draw prompts of 1 to 22 tokens."""
    draw = random.Random(1)  # noqa: S311 - a table of inputs, not a secret
    return [[draw.randrange(VOCAB_SIZE) for _ in range(1 + 3 * place)] for place in range(8)]


def _settings(algorithm: Algorithm, shape: str) -> SpecSettings:
    topk, num_steps, num_draft_tokens = SHAPES[shape]
    return SpecSettings(
        algorithm=algorithm, topk=topk, num_steps=num_steps, num_draft_tokens=num_draft_tokens
    )


def _run(models: Models, settings: SpecSettings, way: Way) -> Kept:
    """Run the prompts to their ends, and tell of the steps."""
    plan = drafting_plan(
        settings.algorithm,
        *("--speculative-num-steps", str(settings.num_steps)),
        *("--speculative-num-draft-tokens", str(settings.num_draft_tokens)),
        *way.arguments,
        topk=settings.topk,
    )
    kept = Kept()
    draft = models.drafts[settings.algorithm]
    engine = Engine.from_plan(
        models.target, plan, "cpu", options=way.options, observer=kept, draft_model_path=draft
    )
    engine.generate(_prompts(), MAX_NEW_TOKENS)
    assert leaks(engine) == (0, 0)
    return kept


CASES = [
    pytest.param(algorithm, shape, way, id=f"{algorithm.value}-{shape}-{way}")
    for algorithm in MODELS
    for shape, way in (
        ("chain", "roomy"),
        ("chain", "crowded"),
        ("tree", "roomy"),
        ("tree", "plain loop"),
        ("tree", "crowded"),
        ("wide tree", "crowded"),
        ("one step", "roomy"),
        ("tree", "halves"),
    )
]


@axis(("algorithm", "shape", "way"), CASES)
def test_drafts_are_those_of_a_model_that_reads_everything_anew(
    algorithm: Algorithm, shape: str, way: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tree is that of the draft model on the tokens alone, whatever was refused before.

    So the keys and values, positions and states that steps leave to each other are right.
    """
    settings, watch = _settings(algorithm, shape), Watch.over(monkeypatch)
    _run(models, settings, WAYS[way])

    slow = SlowDrafter(models, settings)

    assert len(watch.kept) > len(_prompts())
    assert [own.tree for own in watch.kept] == [slow.tree(own.read) for own in watch.kept]


@pytest.mark.parametrize("algorithm", MODELS)
@pytest.mark.parametrize("way", ["roomy", "crowded"])
def test_compared_drafts_are_accepted_and_refused(
    algorithm: Algorithm, way: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some steps accept nothing, some a part and some all of a path."""
    settings, watch = _settings(algorithm, "tree"), Watch.over(monkeypatch)

    _run(models, settings, WAYS[way])

    assert set(watch.num_accepted) >= {1, 2, settings.accept_tokens}


@pytest.mark.parametrize("algorithm", MODELS)
def test_compared_runs_are_crowded(algorithm: Algorithm, models: Models) -> None:
    """There are mixed steps, steps of which a prompt goes on, and retractions."""
    kept = _run(models, _settings(algorithm, "tree"), CROWDED)

    assert [step.mode for step in kept.steps].count(ForwardMode.MIXED) > 3
    assert any(own.num_made < own.num_requests for own in kept.steps if own.mode.name == "EXTEND")
    assert sum(step.num_retracted for step in kept.steps) > 0


def test_slow_drafter_sees_a_state_that_is_wrong(models: Models) -> None:
    """A head drafts other tokens behind states of another prompt, so states are compared too."""
    slow = SlowDrafter(models, _settings(Algorithm.EAGLE, "chain"))
    read = [*_prompts()[5], 7]

    with pytest.MonkeyPatch.context() as patch:
        wrong = slow._target_states(_prompts()[6][: len(read) - 1])  # noqa: SLF001
        patch.setattr(slow, "_target_states", lambda _tokens: wrong)
        confused = slow.tree(read)

    assert confused != slow.tree(read)
