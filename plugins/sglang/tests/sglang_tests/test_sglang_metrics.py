"""The plan as series of metrics; `tests/upstream/test_sglang_server.py` reads them off a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from backend_caps_sglang.bridging.fitting import RULES
from backend_caps_sglang.metrics import LABELS, publish, series

from backend_caps import (
    Capabilities,
    Declaration,
    HostSeqLens,
    Phase,
    Plan,
    Role,
    RuleSet,
    ServerFlags,
    Use,
    resolve,
)


def plan_of(host_seq_lens: HostSeqLens) -> Plan:
    """Resolve a server of one backend that says two things of itself."""
    said = Capabilities(host_seq_lens=host_seq_lens, deterministic=True)
    use = Use(
        backend="acme",
        role=Role.TARGET,
        phase=Phase.DECODE,
        declaration=Declaration(capabilities=said),
    )
    return resolve([use], ServerFlags(), rules=RuleSet.builtin(RULES), policy="quiet")


def test_series_have_the_decisions_lengths_and_the_rest_of_the_bridges() -> None:
    """What is decided over all backends comes from the decision, whatever one backend says."""
    bridged = SimpleNamespace(plan=plan_of(HostSeqLens.NONE))
    flash_wrapper = SimpleNamespace(plan=max)

    found = [
        dict(zip(LABELS, own, strict=True))
        for own in series(plan_of(HostSeqLens.EXACT), [bridged, flash_wrapper, object()])
    ]

    lengths = {own["value"] for own in found if own["capability"] == "host_seq_lens"}
    assert lengths == {"exact"}
    assert {
        "capability": "deterministic",
        "phase": "server",
        "value": "yes",
        "cause": "acme",
        "role": "target",
        "states": "yes",
        "reason": "declares deterministic=yes",
    } in found


def test_nothing_is_published_without_a_folder_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was started without metrics registers none."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    monkeypatch.setattr("backend_caps_sglang.metrics._gauges", lambda: pytest.fail("registered"))

    publish(plan_of(HostSeqLens.NONE), needs_cpu_seq_lens=False, attn_backends=[])
