"""What is told where steps are not as the plan has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from backend_caps import ServerFlags, discover, resolve
from backend_caps.capability.kind import Role
from backend_caps.insight.dry_run import (
    DryRun,
    DryStartError,
    Finding,
    GraphSizes,
    RunPlan,
    ServerSizes,
    dry_run,
    dry_start,
    findings_of,
    run_plan,
)
from backend_caps.insight.dry_run.running import Started
from backend_caps.runtime.graphs import GraphMode
from backend_caps.simulator import register, simulate


def _planned(**flags: object) -> RunPlan:
    register()
    registry = discover(allow=["backend-caps-torch-native"], environ={})
    said = ServerFlags.model_validate({"attention_backend": "torch_padded", **flags})
    return run_plan(resolve(registry.uses(said), said), registry, "sim", {})


@pytest.fixture(scope="module")
def ran() -> Iterator[tuple[DryRun, Started]]:
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
            yield dry_run(started, num_steps=6), started


def test_steps_as_planned_have_no_findings(ran: tuple[DryRun, Started]) -> None:
    """Where all is as it was decided, nothing is told."""
    assert findings_of(*ran) == ()


def test_lengths_that_no_plan_asks_for_are_told(ran: tuple[DryRun, Started]) -> None:
    """Waits for lengths are told where the plan has no mirror."""
    done, started = ran
    own = replace(done.kinds["speculative"], waits_for_lengths=1)

    found = findings_of(replace(done, kinds={**done.kinds, "speculative": own}), started)

    assert [each.code for each in found] == [Finding.LENGTHS]


def test_waits_that_a_gpu_shows_are_told(ran: tuple[DryRun, Started]) -> None:
    """Operators that CUDA's watch saw wait are told where every backend claims to have none."""
    done, started = ran

    found = findings_of(replace(done, hidden=Counter({"item at my_flash.py:7": 2})), started)

    assert [(each.code, each.phase) for each in found] == [(Finding.WAIT, None)]


def test_captured_phase_without_a_replay_is_told(ran: tuple[DryRun, Started]) -> None:
    """A phase that was captured, and all of whose batches ran eagerly, is told."""
    done, started = ran
    phases = [replace(each, modes=type(each.modes)({GraphMode.EAGER: 3})) for each in done.phases]

    found = findings_of(replace(done, phases=phases), started)

    assert {each.code for each in found} == {Finding.GRAPHS}
    assert {each.phase for each in found} == {"draft", "verify", "draft_extend"}


def test_batches_that_the_server_captures_no_graph_for_are_as_decided(
    ran: tuple[DryRun, Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server's own sizes leave batches to no graph, eager ones are no finding."""
    done, started = ran
    phases = [replace(each, modes=type(each.modes)({GraphMode.EAGER: 3})) for each in done.phases]
    bound = GraphSizes(flag="--bs", largest_flag="--max-bs", largest=1)
    sizes = replace(started.sizes, server=ServerSizes(batches=bound))
    monkeypatch.setattr(started, "sizes", sizes)

    assert findings_of(replace(done, phases=phases), started) == ()


def test_forwards_of_roles_are_counted_apart(ran: tuple[DryRun, Started]) -> None:
    """Each role's forwards are there, the draft's by its own steps."""
    done, _ = ran

    roles = {each.role for each in done.phases}

    assert roles == set(Role)


def test_flag_that_is_not_served_cannot_start() -> None:
    """An engine that cannot be made is one error, in the words of what it refused."""
    run = _planned(enable_dp_attention=True)

    with (
        pytest.raises(DryStartError, match="--enable-dp-attention"),
        dry_start(run, ServerSizes(), "cpu"),
    ):
        pass
