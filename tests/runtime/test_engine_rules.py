"""What the engine reads on the host by itself, under its own rules: nothing.

The backend opts out, so a length that any part of the engine asked for would be a missing value, a
wait, or a wrong token in the lazy order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.runtime import Engine, EngineOptions, Sampling
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.simulator import simulate
from tests.runtime.engines import PLAIN_LOOP, plan_of
from tests.runtime.speculative.redrafted import Models, write_models

PADDED = ("--attention-backend", "torch_padded", "--context-length", "64")
EAGLE = ("--speculative-algorithm", "EAGLE")
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12]]
ENDLESS = Sampling(max_new_tokens=8, stop_token_ids=frozenset())
SMALL = EngineOptions(max_running_requests=3, chunked_prefill_size=8, graph_batch_sizes=(2,))
PIECES = EngineOptions(max_running_requests=3, graph_batch_sizes=(), graph_token_counts=(8, 16))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Write a target and its drafts once."""
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def expected(models: Models) -> list[list[int]]:
    """Generate by the plain loop."""
    with Engine.from_plan(models.target, plan_of(*PADDED, *PLAIN_LOOP), "cpu") as engine:
        return engine.generate(PROMPTS, sampling=ENDLESS)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param(EAGLE, SMALL, id="chains"),
        pytest.param((*EAGLE, "--speculative-eagle-topk", "2"), SMALL, id="trees"),
        pytest.param(EAGLE, PIECES, id="pieces"),
        pytest.param((*EAGLE, "--enable-two-batch-overlap"), SMALL, id="halves"),
        pytest.param((*EAGLE, "--enable-mixed-chunk"), SMALL, id="mixed chunks"),
        pytest.param(("--speculative-algorithm", "NGRAM"), SMALL, id="n-grams"),
    ],
)
def test_engine_itself_reads_no_lengths(
    arguments: tuple[str, ...], options: EngineOptions, models: Models, expected: list[list[int]]
) -> None:
    """Tokens are the plain loop's, and no operator and no copy of lengths makes the host wait."""
    plan = plan_of(*PADDED, *arguments)

    with simulate("lazy") as simulation:
        engine = Engine.from_plan(
            models.target,
            plan,
            "sim",
            options=options,
            draft_model_path=_draft(models, SpecSettings.from_flags(plan.flags)),
        )
        num_before = len(simulation.hidden_syncs)

        assert engine.generate(PROMPTS, sampling=ENDLESS) == expected
        assert simulation.hidden_syncs[num_before:] == []
        assert engine.relay.copy_stream is None


def _draft(models: Models, settings: SpecSettings | None) -> Path | None:
    assert settings is not None, "each way speculates"
    return None if settings.algorithm is Algorithm.NGRAM else models.drafts[settings.algorithm]
