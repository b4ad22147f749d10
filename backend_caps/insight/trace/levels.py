"""Steps of a server's configuration, recorded at levels of the mirror."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.insight.dry_run import RunPlan, ServerSizes
from backend_caps.insight.levels import at_level, at_levels
from backend_caps.insight.trace.asked import BATCH_SIZE, Asked
from backend_caps.insight.trace.errors import NoTimelineError
from backend_caps.insight.trace.profiled import profiled
from backend_caps.insight.trace.simulated import simulated
from backend_caps.relay.streams import declared_traits
from backend_caps.report.step_costs import LeftOutDocument
from backend_caps.report.trace_timeline import Timeline
from backend_caps.resolution.plan import Plan
from backend_caps.simulator import DEVICE_NAME

RECORDERS = {DEVICE_NAME: simulated, "cuda": profiled}
"""Who records, by the type of the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A run at each level that can be shown."""

    timelines: Mapping[HostSeqLens, Timeline]
    """From the most that the host is told to the least."""
    left_out: list[LeftOutDocument]
    """Levels that the backends cannot run with."""
    batch_size: int


def check_recordable(device: str) -> None:
    """Require a device of which there is a timeline.

    Raises:
        NoTimelineError: nothing overlaps on it, or nobody reads its records.
    """
    kind = torch.device(device).type
    if kind not in RECORDERS:
        has_streams = declared_traits(torch.device(device)).has_streams
        raise NoTimelineError(device=device, has_streams=has_streams)


def traced_levels(
    decided: Plan,
    run: RunPlan,
    server: ServerSizes,
    *,
    device: str = DEVICE_NAME,
    num_steps: int,
    seed: int = 0,
) -> Traced:
    """Record a plan's steps with an exact mirror and with none, and as the plan itself has it.

    Where no lengths are relayed the level does nothing, and the plan's own is the only one.

    Args:
        decided: the plan of the server's own backends: they say which levels they can run with.
        run: the same, with code that is there.
        server: the server's sizes.
        device: where it runs.
        num_steps: the decode steps to record.
        seed: of the weights.

    Raises:
        NoTimelineError: there is none of that device.
        DryStartError: the engine cannot be made.
        TooManyStepsError: the server's requests are shorter than that.
        StepFailedError: a step of the plan itself raised; where only another level's did, that one
            is left out.
    """
    check_recordable(device)
    record = RECORDERS[torch.device(device).type]
    own = decided.host_seq_lens
    wanted = {own, *((HostSeqLens.EXACT, HostSeqLens.NONE) if decided.relays_speculation else ())}

    def recorded(level: HostSeqLens) -> Timeline:
        at = replace(run, plan=at_level(run.plan, level))
        return record(Asked(run=at, server=server, device=device, num_steps=num_steps, seed=seed))

    timelines, left_out = at_levels(decided, sorted(wanted, reverse=True), recorded)
    size = min(BATCH_SIZE, server.max_running_requests or BATCH_SIZE)
    return Traced(timelines=timelines, left_out=left_out, batch_size=size)
