"""Upgrades that plugins went through: what their authors had to change is found beforehand.

The plugins are as they were released before the port. Each line is one that the port changed, or
one that it left as it was, by the plugins' public histories.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from backend_caps.compatibility.comparison import Comparison, compare, upgrade
from backend_caps.compatibility.contact import Contact, Verdict
from backend_caps.compatibility.releases import Releases
from backend_caps.compatibility.sources import engine_sources, open_plugin
from tests.upstream.sglang_wheel import WHEELS, find_wheel

pytestmark = [pytest.mark.upstream, pytest.mark.vllm_wheel]

RELEASES = Releases(folders=(), cache=WHEELS.with_name("releases"))
BREAKS, CHANGED = Verdict.BREAKS, Verdict.CHANGED


@dataclass(frozen=True)
class Upgrade:
    """An upgrade of vLLM, and the lines of a plugin that go with it."""

    plugin: str
    version: str
    old: str
    new: str
    ported: dict[str, Verdict]
    """What the port changed: a part of the name, and the least that has to be found."""
    kept: tuple[str, ...] = ()
    """What it left, though the engine changed beside it."""

    def found(self) -> Comparison:
        """Compare the plugin with both releases, which are downloaded where they are not there."""
        plugin = open_plugin(str(find_wheel(self.version, self.plugin)))
        old, new = (
            compare(plugin, engine_sources(f"vllm@{each}", RELEASES)[0].open())
            for each in (self.old, self.new)
        )
        return upgrade(old, new)


UPGRADES = [
    Upgrade(
        "tpu_inference",
        "0.18.0",
        "0.18.0",
        "0.20.0",
        {"TPUWorker.compile_or_warm_up_model": BREAKS, "TpuPlatform.manual_seed_all": CHANGED},
    ),
    Upgrade(
        "tpu_inference",
        "0.26.0",
        "0.26.0",
        "0.27.0",
        {
            "VllmMultiHeadLatentAttentionWrapper.__init__": BREAKS,
            "vllm.model_executor.layers.fused_moe.FusedMoE": BREAKS,
        },
    ),
    Upgrade(
        "vllm_rbln",
        "0.11.2.post1",
        "0.24.0",
        "0.30.0",
        {
            "KVCacheManager.get_computed_blocks": BREAKS,
            "RBLNScheduler._preempt_request": BREAKS,
            "RBLNSlidingWindowManager.find_longest_cache_hit": BREAKS,
            "RBLNSlidingWindowManager.cache_blocks": BREAKS,
            "RBLNSlidingWindowManager.get_num_blocks_to_allocate": BREAKS,
            ".supported_kv_cache_layouts": CHANGED,
        },
    ),
    Upgrade(
        "vllm_spyre",
        "1.7.0",
        "0.16.0",
        "0.17.0",
        {
            "ChunkedPrefillSpyreScheduler.finish_requests": BREAKS,
            "SpyreWorker.compile_or_warm_up_model": BREAKS,
        },
        # The release still takes the older form of it.
        kept=("validate_request",),
    ),
]


@pytest.mark.parametrize("recorded", UPGRADES, ids=lambda each: f"{each.plugin}-to-{each.new}")
def test_what_a_port_changed_is_found_beforehand(recorded: Upgrade) -> None:
    """Each is named with the least that becomes of it; what was left alone does not break."""
    findings = recorded.found().findings

    lost = {
        name: verdict
        for name, verdict in recorded.ported.items()
        if not any(_names(each, name) and _is_as_bad(each, verdict) for each in findings)
    }
    assert lost == {}
    assert [e.what for e in findings if any(_names(e, kept) for kept in recorded.kept)] == []


def _names(contact: Contact, name: str) -> bool:
    return name in contact.what


def _is_as_bad(contact: Contact, verdict: Verdict) -> bool:
    order = [*Verdict]
    return order.index(contact.verdict) <= order.index(verdict)
