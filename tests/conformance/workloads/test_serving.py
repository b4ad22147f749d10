from __future__ import annotations

import pytest

from backend_caps.conformance.kit import Forward, Rig, Scenario
from backend_caps.conformance.measuring.models import small_models
from backend_caps.conformance.workloads.serving import Served, serve, sizes_of
from backend_caps.conformance.workloads.traces import ServerTrace, trace_of
from tests.conformance.made import HONEST


def _trace(forward: Forward, seed: int) -> tuple[ServerTrace, Scenario]:
    scenario = Scenario(forward=forward, num_heads=2, num_kv_heads=1)
    return trace_of(HONEST, scenario, seed), scenario


def _served(trace: ServerTrace, scenario: Scenario, device: str = "sim") -> Served:
    algorithm = None if trace.speculation is None else trace.speculation.algorithm
    with (
        small_models(algorithm, sizes=sizes_of(scenario)) as models,
        Rig(subject=HONEST, device=device).running(),
    ):
        return serve(HONEST, trace, models, device)


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
