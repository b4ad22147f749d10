"""What is told where steps are not as the plan has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import replace

import pytest

from backend_caps import ServerFlags, discover, resolve
from backend_caps.capability.kind import Role
from backend_caps.insight.dry_run import DryRun, RunFigures, dry_start
from backend_caps.insight.errors import InsightError
from backend_caps.insight.run_documents import Finding, findings_of
from backend_caps.insight.run_sizes import GraphSizes, ServerSizes
from backend_caps.insight.stand_ins import RunPlan, run_plan
from backend_caps.resolution.rules import RuleSet
from backend_caps.simulator import register, simulate
from backend_caps.startup.graph_modes import GraphMode


def _planned(**flags: object) -> RunPlan:
    register()
    registry = discover(allow=["backend-caps-torch-native"], environ={})
    said = ServerFlags.model_validate({"attention_backend": "torch_padded", **flags})
    return run_plan(
        resolve(registry.uses(said), said, rules=RuleSet.builtin("sglang-0.5.13")),
        registry,
        "sim",
        {},
    )


@pytest.fixture(scope="module")
def done() -> Iterator[DryRun]:
    """Steps of a speculative server without a mirror, all as planned."""
    run = _planned(
        speculative_algorithm="EAGLE",
        speculative_num_steps=2,
        speculative_eagle_topk=1,
        disable_piecewise_cuda_graph=True,
    )
    with simulate("eager") as simulation:
        server = ServerSizes(max_running_requests=2, chunked_prefill_size=16)
        with dry_start(run, server, "sim", simulation=simulation) as started:
            started.run_steps(6)
            yield started


def _eager(done: DryRun) -> RunFigures:
    """Return the figures of the same forwards, had none of them been replayed."""
    figures = copy(done.figures)
    figures.phases = {
        place: replace(own, modes=Counter({GraphMode.EAGER: 3}))
        for place, own in figures.phases.items()
    }
    return figures


def test_steps_as_planned_have_no_findings(done: DryRun) -> None:
    """Where all is as it was decided, nothing is told."""
    assert [*findings_of(done)] == []


def test_lengths_that_no_plan_asks_for_are_told(done: DryRun) -> None:
    """Waits for lengths are told where the plan has no mirror."""
    figures = copy(done.figures)
    (first, seconds), *others = figures.kinds["speculative"]
    waiting = (replace(first, waits_for_lengths=True), seconds)
    figures.kinds = {**figures.kinds, "speculative": [waiting, *others]}

    found = findings_of(replace(done, figures=figures))

    assert [Finding(each.code) for each in found] == [Finding.LENGTHS]


def test_waits_that_a_gpu_shows_are_told(done: DryRun) -> None:
    """Operators that CUDA's watch saw wait are told where every backend claims to have none."""
    found = findings_of(replace(done, hidden=Counter({"item at my_flash.py:7": 2})))

    assert [(Finding(each.code), each.phase) for each in found] == [(Finding.WAIT, None)]


def test_captured_phase_without_a_replay_is_told(done: DryRun) -> None:
    """A phase that was captured, and all of whose batches ran eagerly, is told."""
    found = [*findings_of(replace(done, figures=_eager(done)))]

    assert {Finding(each.code) for each in found} == {Finding.GRAPHS}
    assert {each.phase for each in found} == {"draft", "verify", "draft_extend"}


def test_batches_that_the_server_captures_no_graph_for_are_as_decided(done: DryRun) -> None:
    """Where the server's own sizes leave batches to no graph, eager ones are no finding."""
    bound = GraphSizes(flag="--bs", largest_flag="--max-bs", largest=1)
    sizes = replace(done.sizes, server=ServerSizes(batches=bound))

    assert [*findings_of(replace(done, figures=_eager(done), sizes=sizes))] == []


def test_forwards_of_roles_are_counted_apart(done: DryRun) -> None:
    """Each role's forwards are there, the draft's by its own steps."""
    assert {role for role, _ in done.figures.phases} == set(Role)


def test_flag_that_is_not_served_cannot_start() -> None:
    """An engine that cannot be made is one error, in the words of what it refused."""
    run = _planned(enable_dp_attention=True)

    with (
        pytest.raises(InsightError, match="--enable-dp-attention"),
        dry_start(run, ServerSizes(), "cpu"),
    ):
        pass
