"""What a value does on a server, and when it does nothing: data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backend_caps.capability.facts import Situation
from backend_caps.capability.vocabulary import GraphMetadata, HostSeqLens
from backend_caps.resolution.rules import RuleSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a value does on this server."""

    active: bool
    text: str
    """What it does, or why it does nothing."""

    def __str__(self) -> str:
        return self.text if self.active else f"no effect: {self.text}"


_NO_SPECULATION = ("speculative_algorithm", "NONE")
_NO_OVERLAP = ("disable_overlap_schedule", True)
_NO_GRAPHS = ("disable_cuda_graph", True)
_NO_TBO = ("enable_two_batch_overlap", False)
_NOT_ASKED = ("enable_deterministic_inference", False)

_IDLE: Mapping[str, Mapping[tuple[str, object], str]] = {
    "host_seq_lens": {
        _NO_SPECULATION: "without speculative decoding the scheduler knows the lengths",
        _NO_OVERLAP: "without overlap the lengths are known when the next step is prepared",
    },
    "graph_replay": {_NO_GRAPHS: "CUDA graphs are switched off"},
    "graph_metadata": {_NO_GRAPHS: "CUDA graphs are switched off"},
    "sync_free_prepare": {_NO_OVERLAP: "without overlap the host waits anyway"},
    "shared_reads_end": {_NO_OVERLAP: "without overlap nothing is overwritten meanwhile"},
    "two_batch_overlap": {_NO_TBO: "two-batch overlap is switched off"},
    "deterministic": {_NOT_ASKED: "deterministic inference is switched off"},
    "batch_invariant": {_NOT_ASKED: "deterministic inference is switched off"},
    "max_speculative_topk": {_NO_SPECULATION: "there are no draft trees"},
}
"""The flags under which a capability's value does nothing, and why."""

_DOES: Mapping[object, str] = {
    HostSeqLens.EXACT: "a D2H copy and a host wait in every overlapped speculative step",
    HostSeqLens.UPPER_BOUND: "a bound is kept on the host; no copy, no wait",
    HostSeqLens.NONE: "no copy, no wait",
    GraphMetadata.HOST: "host code runs before every replay",
    GraphMetadata.DEVICE: "device work runs before every replay",
    GraphMetadata.IN_GRAPH: "nothing runs before a replay",
}
"""What a value does, where its name does not say it."""


def effect_of(
    capability: str, value: object, *, situation: Situation, rules: RuleSet, used: bool
) -> Effect:
    """Say what a value does on a server."""
    if not used:
        return Effect(active=False, text="no use on this server reads it")
    for (flag, setting), why in _IDLE.get(capability, {}).items():
        if situation.get(flag) == setting:
            return Effect(active=False, text=why)
    algorithm = str(situation["speculative_algorithm"])
    if capability == "host_seq_lens" and not rules.overlaps(algorithm):
        return Effect(active=False, text=f"{rules.name} does not overlap the steps of {algorithm}")
    return Effect(active=True, text=_DOES.get(value, ""))
