"""Steps that were recorded once, for all who look at them."""

from __future__ import annotations

import pytest

from backend_caps import HostSeqLens, Plan, ServerFlags, discover, resolve
from backend_caps.insight.run_sizes import ServerSizes
from backend_caps.insight.stand_ins import RunPlan
from backend_caps.insight.trace import Recording, Traced, traced_levels
from backend_caps.report.trace_timeline import Timeline
from backend_caps.simulator import register

CHAIN = (
    "--attention-backend torch_padded --speculative-algorithm EAGLE3 --speculative-num-steps 2 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 3 --disable-piecewise-cuda-graph"
)


def planned(line: str) -> Plan:
    """Resolve a server's flags against what is installed."""
    register()
    flags, registry = ServerFlags.from_argv(line.split()), discover()
    return resolve(registry.uses(flags), flags, rules=registry.rules("sglang-0.5.13"))


def recorded(line: str, num_steps: int = 2) -> Traced:
    """Record steps of a server whose code is here."""
    plan = planned(line)
    recording = Recording(
        run=RunPlan(plan=plan), server=ServerSizes(), device="sim", num_steps=num_steps
    )
    return traced_levels(plan, recording)


@pytest.fixture(scope="session")
def traced() -> Traced:
    """Steps of chains, with an exact mirror and with none."""
    return recorded(CHAIN)


@pytest.fixture(scope="session")
def exact(traced: Traced) -> Timeline:
    """Those with an exact mirror."""
    return traced.timelines[HostSeqLens.EXACT]


@pytest.fixture(scope="session")
def none(traced: Traced) -> Timeline:
    """Those with none."""
    return traced.timelines[HostSeqLens.NONE]
