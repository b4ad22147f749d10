"""What an engine that speculates refuses when it is made, and what it does not do in vain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps import Exact, Plan, Role, RuleSet, resolve
from backend_caps.runtime import (
    Engine,
    EngineError,
    EngineOptions,
    RequestTooLongError,
    Sampling,
    UnfitBackendError,
)
from backend_caps.runtime.model.random_models import first_layers, random_llama
from backend_caps.startup.graph_choice import Obstacle
from backend_caps.startup.graph_modes import GraphMode
from tests.property.strategies import law
from tests.runtime.engines import plan_of
from tests.runtime.speculative.pairwise import Row, pairwise_cover

EAGER = EngineOptions(graph_batch_sizes=())
PADDED = ("--attention-backend", "torch_padded")
STANDALONE = (*PADDED, "--speculative-algorithm", "STANDALONE")
TREE = ("--speculative-eagle-topk", "4", "--speculative-num-steps", "3")


Make = Callable[[Plan, EngineOptions], Engine]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Write a target and a draft of its first layer, and make engines of them."""
    folder = tmp_path_factory.mktemp("refusals")
    target, draft = folder / "target", folder / "draft"
    random_llama(target, vocab_size=64, hidden_size=32, later_gain=0.1)
    first_layers(draft, target)

    def make(plan: Plan, options: EngineOptions) -> Engine:
        return Engine.from_plan(target, plan, "cpu", options=options, draft_model_path=draft)

    return make


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(PADDED, id="no speculation"),
        pytest.param((*PADDED, "--speculative-algorithm", "NGRAM"), id="drafts of the host"),
    ],
)
def test_draft_model_that_nobody_runs_is_refused(make: Make, arguments: tuple[str, ...]) -> None:
    """A draft model is named for an algorithm that has one."""
    with pytest.raises(EngineError, match="EAGLE, EAGLE3 or STANDALONE was expected"):
        make(plan_of(*arguments), EAGER)


@pytest.mark.parametrize(
    "slot", ["--attention-backend", "--speculative-draft-attention-backend"], ids=lambda own: own
)
def test_trees_are_refused_for_a_backend_of_chains(make: Make, slot: str) -> None:
    """A backend that takes fewer candidates than a tree has is not handed one."""
    plan = plan_of(*STANDALONE, *TREE, slot, "torch_native")

    with pytest.raises(UnfitBackendError, match="--speculative-eagle-topk is 4"):
        make(plan, EAGER)


def test_mixed_steps_are_refused_for_a_prefill_that_lacks_the_mirror(make: Make) -> None:
    """A prefill backend that reads lengths on the host gets no rows that have none there."""
    mixed = ("--disable-piecewise-cuda-graph", "--enable-mixed-chunk")
    routed = ("--speculative-attention-mode", "decode")
    drafted = ("--speculative-draft-attention-backend", "torch_padded")
    prefill = ("--prefill-attention-backend", "torch_native")
    plan = plan_of(*STANDALONE, *mixed, *routed, *drafted, *prefill)
    plan = resolve(plan.uses, plan.flags, rules=RuleSet.builtin("sglang-0.5.13"), policy="quiet")

    with pytest.raises(UnfitBackendError, match="'torch_native' runs mixed steps with speculative"):
        make(plan, EAGER)


def _of_head_size(plan: Plan, role: Role, size: int) -> Plan:
    """Let the backends of a role take one head size alone."""
    uses = []
    for use in plan.uses:
        assert use.declaration is not None, "plugins are installed"
        own = use.declaration.capabilities.model_copy(update={"head_sizes": Exact(size)})
        declaration = use.declaration.model_copy(update={"capabilities": own})
        uses.append(replace(use, declaration=declaration) if use.role is role else use)
    return replace(plan, uses=tuple(uses))


def test_draft_backends_are_asked_for_the_drafts_head_size(make: Make) -> None:
    """What a backend of the draft takes is held to the draft's own heads."""
    plan = _of_head_size(plan_of(*STANDALONE), Role.DRAFT, 128)

    with pytest.raises(UnfitBackendError, match="takes head_size 128; here it is 8"):
        make(plan, EAGER)


def test_slots_behind_a_context_are_named_where_a_request_is_refused(make: Make) -> None:
    """A KV cache that holds a request, and not what drafts write behind it, is refused."""
    small = replace(EAGER, max_total_tokens=10)
    engine = make(plan_of(*STANDALONE), small)

    with pytest.raises(RequestTooLongError, match="and 9 behind them for drafts; the KV cache has"):
        engine.submit([1, 2], Sampling(max_new_tokens=2))


def test_prompts_are_no_full_graphs_of_a_speculating_engine(make: Make) -> None:
    """Whoever names sizes of prompts to capture learns why none is captured whole."""
    options = replace(EAGER, graph_token_counts=(16,))
    engine = make(plan_of(*STANDALONE), options)

    choices = [own for own in engine.graph_choices if own.phase.value == "prefill"]

    assert all(Obstacle.SPECULATION in own.obstacles[GraphMode.FULL] for own in choices)
    assert not any(Obstacle.SPECULATION in own.obstacles[GraphMode.PIECEWISE] for own in choices)


def _prompts(num_prompts: int) -> Sequence[list[int]]:
    return [[(3 * place + 7 * step) % 64 for step in range(12)] for place in range(num_prompts)]


@pytest.mark.parametrize("mixed", [(), ("--enable-mixed-chunk",)], ids=["apart", "mixed"])
def test_nobody_is_let_in_whose_first_step_has_no_room(make: Make, mixed: tuple[str, ...]) -> None:
    """In a small KV cache prompts wait for the slots of their drafts, and are not run in vain."""
    small = replace(EAGER, max_total_tokens=80)
    engine = make(plan_of(*STANDALONE, *TREE, *mixed), small)
    requests = [engine.submit(own, Sampling(max_new_tokens=16)) for own in _prompts(6)]

    engine.drain()

    assert all(request.is_finished for request in requests)
    assert sum(request.num_retractions for request in requests) <= 4


_Axes = Mapping[str, Sequence[object]]


def _rows(axes: _Axes) -> list[Row]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _held(rows: Sequence[Row]) -> set[tuple[tuple[str, object], ...]]:
    return {pair for row in rows for pair in combinations(row.items(), 2)}


_ANY_AXES = st.lists(st.integers(1, 4), min_size=2, max_size=4).map(
    lambda sizes: {f"axis {number}": range(size) for number, size in enumerate(sizes)}
)


@given(axes=_ANY_AXES, banned=st.sets(st.integers(0, 12)))
@law
def test_cover_holds_every_legal_pair_and_no_other_row(axes: _Axes, banned: set[int]) -> None:
    """A pair that some legal row holds is held by a row of the cover, and that row is legal."""

    def is_legal(row: Row) -> bool:
        return sum(value for value in row.values() if isinstance(value, int)) not in banned

    cover = pairwise_cover(axes, is_legal)

    legal = [row for row in _rows(axes) if is_legal(row)]
    assert _held(cover) == _held(legal)
    assert [row for row in cover if row not in legal] == []
