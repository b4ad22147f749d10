from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.kit import Effort, Forward, Rig, Scenario, Subject
from backend_caps.kit.checks import serving
from backend_caps.kit.models import small_models
from backend_caps.kit.workloads.serving import Served, serve, sizes_of
from backend_caps.kit.workloads.traces import ServerTrace, trace_of
from tests.kit.liars.whole import LIARS
from tests.kit.made import HONEST


def _trace(forward: Forward, seed: int) -> tuple[ServerTrace, Scenario]:
    scenario = Scenario(forward=forward, num_heads=2, num_kv_heads=1)
    return trace_of(HONEST, scenario, seed), scenario


def _served(
    trace: ServerTrace, scenario: Scenario, device: str = "sim", subject: Subject = HONEST
) -> Served:
    algorithm = None if trace.speculation is None else trace.speculation.algorithm
    with (
        small_models(algorithm, sizes=sizes_of(scenario)) as models,
        Rig(subject=subject, device=device).running(),
    ):
        return serve(subject, trace, models, device)


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_requests_end_and_give_everything_back(device: str) -> None:
    """Requests that do not fit together are retracted, and end; rows and pages come back."""
    trace, scenario = _trace(Forward.DECODE, 0)

    served = _served(trace, scenario, device)

    assert served.num_retracted > 0
    assert served.left_over == []
    assert [len(own) for own in served.outputs] == [
        own.sampling.max_new_tokens for own in trace.asked
    ]


def test_traces_of_the_least_effort_retract() -> None:
    """Whatever is served, some request is run again from its prompt, at `Effort.quick()`."""
    cases = serving.CHECK.cases(HONEST, Effort.quick())

    retracted = {
        own.scenario.forward: _served(trace_of(HONEST, own.scenario, own.seed), own.scenario, "cpu")
        for own in cases
        if own.scenario is not None
    }

    assert set(retracted) == {Forward.DECODE, Forward.MIXED, Forward.VERIFY, Forward.TREE}
    assert all(served.num_retracted for served in retracted.values())


def test_drafts_are_counted_by_where_they_begin() -> None:
    """Of each request it is known how many tokens each step gave, and from where on."""
    trace, scenario = _trace(Forward.VERIFY, 0)

    served = _served(trace.plainly, scenario)

    counts = [sum(own.values()) for own in served.accepted.values()]
    # The first token of each is its prompt's.
    assert counts == [len(own) - 1 for own in served.outputs]


def test_room_for_all_retracts_nobody() -> None:
    """What is compared with is a run without retractions."""
    trace, scenario = _trace(Forward.DECODE, 0)

    assert _served(trace.plainly, scenario).num_retracted == 0


@pytest.mark.parametrize("name", ["slots_of_the_prompt", "length_of_the_prompt"])
def test_room_for_all_hides_who_fails_under_retraction(name: str) -> None:
    """Who minds a prompt that comes back makes the right tokens where none does."""
    [subject] = [own.subject for own in LIARS if own.name == name]
    scenario = Scenario(forward=Forward.DECODE, num_heads=2, num_kv_heads=1)
    trace = trace_of(subject, scenario, 0)
    roomy = replace(trace, num_pages=trace.num_pages * len(trace.asked))

    plain, alone, retracted = (
        _served(own, scenario, "cpu", subject).outputs for own in (trace.plainly, roomy, trace)
    )

    assert alone == plain
    assert retracted != plain
