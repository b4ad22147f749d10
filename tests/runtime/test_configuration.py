"""The configuration of an engine, and the rules that an engine holds its backends to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend_caps import BatchKind, Capabilities, HostSeqLens, Phase, Role, ServerFlags, resolve
from backend_caps.capability.facts import Given
from backend_caps.relay import DraftShape, FutureMap, RelayBatch
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.rules import Rule
from backend_caps.runtime import Engine, EngineError, EngineOptions, Sampling
from backend_caps.runtime.configuration import configuration_of, configure_engine
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.simulator import simulate
from backend_caps.startup.graph_choice import Obstacle
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.engines import PLAIN_LOOP, plan_of
from tests.runtime.speculative.redrafted import Models, write_models

EAGLE_CHAIN = ("--speculative-algorithm", "EAGLE")
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12]]
ENDLESS = Sampling(max_new_tokens=8, stop_token_ids=frozenset())
SMALL = EngineOptions(max_running_requests=3, chunked_prefill_size=8, graph_batch_sizes=(2,))
PIECES = EngineOptions(max_running_requests=3, graph_batch_sizes=(), graph_token_counts=(8, 16))


@pytest.fixture(scope="module")
def expected(models: Models) -> list[list[int]]:
    """Generate by the plain loop."""
    with Engine.from_plan(models.target, plan_of(*PADDED, *PLAIN_LOOP), "cpu") as engine:
        return engine.generate(PROMPTS, sampling=ENDLESS)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        pytest.param(EAGLE_CHAIN, SMALL, id="chains"),
        pytest.param((*EAGLE_CHAIN, "--speculative-eagle-topk", "2"), SMALL, id="trees"),
        pytest.param(EAGLE_CHAIN, PIECES, id="pieces"),
        pytest.param((*EAGLE_CHAIN, "--enable-two-batch-overlap"), SMALL, id="halves"),
        pytest.param((*EAGLE_CHAIN, "--enable-mixed-chunk"), SMALL, id="mixed chunks"),
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


PADDED = ("--attention-backend", "torch_padded", "--context-length", "64")
EAGLE = ("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "2")
HIDDEN_SIZE = 64


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Write a target and its drafts once."""
    return write_models(tmp_path_factory.mktemp("models"))


def _forcing(level: HostSeqLens, *arguments: str) -> Plan:
    """Resolve a speculating server under a rule that forces lengths on the host."""
    plan = plan_of(*PADDED, *EAGLE, "--disable-piecewise-cuda-graph", *arguments)
    rule = Rule(
        name="test",
        given=Given(speculative_algorithm=frozenset({"EAGLE"})),
        forces=Capabilities(host_seq_lens=level),
        reason="a test asks for it",
    )
    rules = plan.rules if level is HostSeqLens.NONE else plan.rules.with_rules([rule])
    return resolve(plan.uses, plan.flags, rules=rules, policy="quiet")


def test_configured_engine_reads_sizes_from_the_folder(models: Models) -> None:
    """Pool rows, draft shape and facts are those of options and config.json."""
    flags = ServerFlags.from_argv([*PADDED, *EAGLE])

    made = configure_engine(
        flags, models.target, device="cpu", options=EngineOptions(max_running_requests=5)
    )

    assert made.future_map.pool_size == 6
    assert made.draft == DraftShape(
        topk=2, hidden_size=HIDDEN_SIZE, dtype=torch.float32, accept_tokens=4
    )
    assert (made.plan.rules.name, made.plan.facts.dtype) == (RUNTIME, "float32")


def test_map_of_the_plain_loop_brings_nothing(models: Models) -> None:
    """Every result is processed before the next step, so the scheduler has the lengths."""
    plan = _forcing(HostSeqLens.EXACT, *PLAIN_LOOP)

    made = configuration_of(plan, models.target, device="cpu")

    assert (made.future_map.host_seq_lens, made.future_map.speculative) == (HostSeqLens.NONE, True)


def test_engine_steps_through_the_configured_map(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step of an engine reads the last one's tokens through the configuration's own map."""
    made = configuration_of(plan_of(*PADDED), models.target, device="cpu")
    used: list[FutureMap] = []
    resolve_future = FutureMap.resolve_future

    def seen(relay: FutureMap, batch: RelayBatch) -> None:
        used.append(relay)
        resolve_future(relay, batch)

    monkeypatch.setattr(FutureMap, "resolve_future", seen)
    with Engine(models.target, made) as engine:
        engine.generate([[1, 2, 3]], 4)

    assert len(used) >= 3
    assert {id(own) for own in used} == {id(made.future_map)}


def test_configuration_says_how_batches_run(models: Models) -> None:
    """Choices of graphs are there before any engine is, and name what keeps each mode away."""
    made = configuration_of(plan_of(*PADDED), models.target, device="cpu")

    decode = {own.kind: own for own in made.graph_choices[Role.TARGET] if own.phase is Phase.DECODE}

    assert decode[BatchKind.SINGLE_TOKEN_DECODE].effective is GraphMode.EAGER
    assert decode[BatchKind.SINGLE_TOKEN_DECODE].refused[GraphMode.FULL] == (Obstacle.DEVICE,)


@pytest.mark.parametrize(
    ("arguments", "options", "field"),
    [
        ((), {"max_running_requests": 3}, "pool_size"),
        (EAGLE, {"dtype": torch.bfloat16}, "draft shape"),
        ((), {"graph_batch_sizes": (1,), "max_graph_batch_size": 2}, "target decode graph sizes"),
        ((), {"graph_token_counts": (8,)}, "target graph token counts"),
        ((), {"pads_graphs": False}, "target decode graph sizes"),
    ],
)
def test_engine_refuses_the_configuration_of_another(
    arguments: tuple[str, ...], options: dict[str, object], field: str, models: Models
) -> None:
    """Rows, graph sizes and draft state have to be those of the engine's options and models."""
    own = EngineOptions(**options)  # type: ignore[arg-type] # a table of fields
    plan = plan_of(*PADDED, *arguments)
    made = configuration_of(plan, models.target, device="cpu")
    draft: Path | None = None
    if plan.flags.speculative_algorithm is not None:
        draft = next(own for name, own in models.drafts.items() if name.value == "EAGLE")

    with pytest.raises(EngineError, match=f"the configuration's {field} is "):
        Engine(models.target, made, options=own, draft_model_path=draft)
