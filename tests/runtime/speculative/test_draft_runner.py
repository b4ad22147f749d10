"""Forwards of a draft model that replay captured graphs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from torch import Tensor

from backend_caps import BatchKind, Phase, Plan, Role
from backend_caps.relay import DeviceStreams
from backend_caps.relay.streams import EventLike
from backend_caps.runtime import Engine, EngineOptions, ForwardBatch, GraphMode, configuration_of
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.graphs.runner import Computed
from backend_caps.runtime.options import graph_sizes_of
from backend_caps.runtime.speculation import Algorithm
from backend_caps.runtime.speculative.drafter import DraftForwards
from backend_caps.runtime.step import Step, StepLauncher
from backend_caps.simulator import simulate
from backend_caps.startup.graph_choice import Obstacle, choose_graphs, kind_of
from tests.cases import axis
from tests.runtime.engines import plan_of
from tests.runtime.graphs.rig import SIMULATED
from tests.runtime.observed import Kept
from tests.runtime.speculative.redrafted import (
    Models,
    SlowDrafter,
    Watch,
    drafting_plan,
    settings_of,
)

FULL, PIECEWISE, EAGER = GraphMode
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [3, 5, 8, 9]]
OPTIONS = EngineOptions(max_running_requests=3, graph_batch_sizes=(1, 3))
MODELS = (Algorithm.EAGLE, Algorithm.EAGLE3, Algorithm.STANDALONE)
DRAFTED = ((Role.DRAFT, Phase.DECODE), (Role.DRAFT_EXTEND, Phase.VERIFY))


@dataclass
class Forwards:
    """An observer that counts forwards by role, phase and graph mode."""

    counted: Counter[tuple[Role, Phase, GraphMode]] = field(default_factory=Counter)
    _begun: tuple[Role, Phase] | None = None

    def began(self, role: Role, phase: Phase) -> None:
        """Keep whose forward it is."""
        self._begun = (role, phase)

    def ended(self, graph_mode: GraphMode) -> None:
        """Count it."""
        assert self._begun is not None, "what ends has begun"
        self.counted[*self._begun, graph_mode] += 1


def _run(
    models: Models, algorithm: Algorithm, plan: Plan, graph_batch_sizes: tuple[int, ...] = (1, 3)
) -> tuple[list[list[int]], Forwards, Kept]:
    """Generate on the simulated device; return tokens, forwards and steps."""
    forwards, kept = Forwards(), Kept()
    engine = Engine.from_plan(
        models.target,
        plan,
        "sim",
        options=replace(OPTIONS, graph_batch_sizes=graph_batch_sizes),
        observer=kept,
        draft_model_path=models.drafts[algorithm],
        streams=DeviceStreams("sim", SIMULATED),
    )
    for own in engine.all_backends:
        own.observer = forwards
    return engine.generate(PROMPTS, 9), forwards, kept


def _tokens(models: Models) -> list[list[int]]:
    """Generate without speculation."""
    plan = plan_of("--attention-backend", "torch_native", "--context-length", "64")
    return Engine.from_plan(models.target, plan, "cpu").generate(PROMPTS, 9)


@axis("topk", [1, 2], ids=["chain", "tree"])
@axis("algorithm", MODELS, ids=lambda own: own.value)
def test_drafts_replay_graphs_in_any_order(models: Models, algorithm: Algorithm, topk: int) -> None:
    """Draft steps and draft-extends are replayed without a race, and tokens are the target's."""
    with simulate("random:3", check_races=True) as simulation:
        tokens, forwards, kept = _run(models, algorithm, drafting_plan(algorithm, topk=topk))

    modes = {
        place: {mode for *own, mode in forwards.counted if (*own,) == place} for place in DRAFTED
    }
    assert tokens == _tokens(models)
    assert modes == {place: {FULL} for place in DRAFTED}
    assert simulation.races == ()
    assert {own.graph_mode for own in kept.steps if own.mode is ForwardMode.DECODE} == {FULL}


@axis("topk", [1, 2], ids=["chain", "tree"])
@axis("algorithm", MODELS, ids=lambda own: own.value)
def test_replayed_drafts_are_those_of_a_model_that_reads_everything_anew(
    models: Models, algorithm: Algorithm, topk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What graphs read of hidden states, masks and lengths is right: the drafted trees are."""
    plan, watch = drafting_plan(algorithm, topk=topk), Watch.over(monkeypatch)
    with simulate("eager"):
        _run(models, algorithm, plan)

    slow = SlowDrafter(models, settings_of(plan))

    assert [own.tree for own in watch.kept] == [slow.tree(own.read) for own in watch.kept]


@pytest.mark.parametrize("sizes", [(1, 3), ()], ids=["replayed", "eager"])
def test_barrier_of_a_step_is_released_by_its_replayed_draft_extend(
    models: Models, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decode step has the event that its draft-extend's replay marks; an eager one has none."""
    marked: list[EventLike | None] = []
    found: list[EventLike | None] = []
    run = DraftForwards.run

    def watched(forwards: DraftForwards, batch: ForwardBatch, hidden: Tensor | None) -> Computed:
        states = run(forwards, batch, hidden)
        if forwards.backends.role is Role.DRAFT_EXTEND:
            marked.append(states.reads_done)
        return states

    def barrier(_: StepLauncher, step: Step) -> None:
        if step.batch.mode is ForwardMode.DECODE:
            found.append(step.output.reads_done)

    monkeypatch.setattr(DraftForwards, "run", watched)
    monkeypatch.setattr(StepLauncher, "barrier", barrier)
    with simulate("eager"):
        _run(models, Algorithm.EAGLE3, drafting_plan(Algorithm.EAGLE3), sizes)

    assert found, "decode steps were taken"
    assert {*map(id, found)} <= {*map(id, marked)}
    assert all((own is not None) is bool(sizes) for own in found)


def _choices(plan: Plan, role: Role) -> dict[Phase, tuple[object, ...]]:
    sizes = graph_sizes_of(OPTIONS, settings_of(plan))[role]
    return {
        own.phase: (own.effective, own.obstacles[FULL])
        for own in choose_graphs(plan, SIMULATED, sizes, role)
        if own.kind is kind_of(plan.flags, role, own.phase)
    }


@pytest.mark.parametrize("topk", [1, 2])
def test_drafts_are_captured_where_their_backend_declares_it(topk: int) -> None:
    """Draft steps and draft-extend are captured whole; a draft model's prompts are not."""
    plan = drafting_plan(Algorithm.EAGLE3, topk=topk)

    assert _choices(plan, Role.DRAFT) == {
        Phase.PREFILL: (EAGER, (Obstacle.DRAFT,)),
        Phase.DECODE: (FULL, ()),
    }
    assert _choices(plan, Role.DRAFT_EXTEND) == {Phase.VERIFY: (FULL, ())}


def test_draft_s_backend_is_its_own_obstacle(models: Models) -> None:
    """A draft's backend that declares no replay keeps drafts from graphs, and not the target."""
    plan = drafting_plan(Algorithm.EAGLE3, "--speculative-draft-attention-backend", "torch_native")
    configuration = configuration_of(
        plan,
        models.target,
        device="cpu",
        draft_model_path=models.drafts[Algorithm.EAGLE3],
        options=OPTIONS,
        streams=DeviceStreams("cpu"),
    )

    assert _choices(plan, Role.DRAFT_EXTEND) == {Phase.VERIFY: (EAGER, (Obstacle.BACKEND,))}
    (verify,) = (
        own
        for own in configuration.graph_choices[Role.TARGET]
        if (own.phase, own.kind) == (Phase.VERIFY, BatchKind.UNIFORM_BATCH)
    )
    assert Obstacle.BACKEND not in verify.obstacles[FULL]
