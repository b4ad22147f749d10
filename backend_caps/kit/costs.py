"""What a backend's batches cost on the simulated device, counted as they run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.probes.seq_lens import RELAYED, level_of
from backend_caps.kit.rig import OverdueError, Rig, ends_within, supplied
from backend_caps.kit.scenarios import (
    MOST_REQUESTS,
    Forward,
    Scenario,
    dice_for,
    draw_requests,
    forwards_of,
    scenarios_of,
)
from backend_caps.kit.subject import Subject
from backend_caps.report.check_documents import CostDocument, PartCostDocument
from backend_caps.simulator import DEVICE_NAME
from backend_caps.simulator.records import Counts

_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """The cost of one part of a batch."""

    launches: int
    """Operators and kernels, copies among them."""
    host_waits: int
    """Times that the host stood still for the device."""
    bytes_to_host: int
    """What crossed from the device to the host."""
    bytes_to_device: int
    """What crossed from the host to the device."""

    @classmethod
    def of(cls, counts: Counts) -> Self:
        """Take the cost from the counts of a span."""
        return cls(
            launches=counts.num_ops,
            host_waits=counts.num_host_waits,
            bytes_to_host=counts.bytes_to_host,
            bytes_to_device=counts.bytes_to_device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost:
    """The cost of an eager batch of one forward, the second of its kind."""

    forward: Forward
    host_seq_lens: HostSeqLens
    """The lengths that the host brought; an exact one costs the engine a copy and a wait."""
    num_requests: int
    num_context_tokens: int
    """Tokens of all contexts together."""
    prepare: PartCost
    """Of `init_forward_metadata`."""
    layer: PartCost
    """Of `forward` in one layer, with the storing of its tokens."""
    bytes_held: int
    """Device memory that the backend holds behind the preparation, beside the KV cache."""

    def document(self) -> CostDocument:
        """Write it down."""
        return CostDocument.of(
            self,
            forward=self.forward.value,
            host_seq_lens=self.host_seq_lens.value,
            prepare=PartCostDocument.of(self.prepare),
            layer=PartCostDocument.of(self.layer),
        )


def costs_of(subject: Subject, forwards: Iterable[Forward] | None = None) -> Iterator[BatchCost]:
    """Count the cost of each forward that a backend supports, at the first size of its claims.

    A forward that raises, or takes longer than a minute, is left out: checks say what is wrong.

    Args:
        subject: the backend.
        forwards: which of them; None: all.
    """
    rig = Rig(subject=subject, device=DEVICE_NAME)
    for forward in forwards_of(subject) if forwards is None else forwards:
        scenario = next(iter(scenarios_of(subject, [forward])), None)
        if scenario is not None:
            with suppress(OverdueError, Exception), ends_within(_DEADLINE_S):
                yield _measured(rig, scenario)


def _measured(rig: Rig, scenario: Scenario) -> BatchCost:
    dice = dice_for(scenario, 0)
    drawn = draw_requests(scenario, dice, MOST_REQUESTS, setting_seed=0)
    is_relayed = scenario.forward in RELAYED
    level = level_of(rig.subject, scenario) if is_relayed else HostSeqLens.EXACT
    with rig.running() as simulation:
        assert simulation is not None, "it runs on the simulated device"
        scene = supplied(drawn, level).on(rig.device)
        before_all = simulation.num_live_bytes
        backend = rig.build(scene.pools)
        scene.attend(backend)  # the first batch may compile, or fill caches
        before = simulation.counts.copy()
        backend.init_forward_metadata(scene.batch)
        held, between = simulation.num_live_bytes - before_all, simulation.counts.copy()
        scene.forward(backend)
        after = simulation.counts.copy()
    return BatchCost(
        forward=scenario.forward,
        host_seq_lens=level,
        num_requests=len(drawn.counts),
        num_context_tokens=int(drawn.batch.seq_lens.sum()),
        prepare=PartCost.of(between - before),
        layer=PartCost.of(after - between),
        bytes_held=held,
    )
