"""The plan as series of metrics; `tests/upstream/test_sglang_server.py` reads them off a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from backend_caps_sglang.fit import RULES
from backend_caps_sglang.metrics import LABELS, publish, series
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

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

_SCHEDULER = """\
from backend_caps import *
from backend_caps_sglang.metrics import publish

use = Use(backend="acme", role=Role.TARGET, phase=Phase.DECODE, declaration=Declaration())
rules = RuleSet.builtin("sglang-0.5.23")
plan = resolve([use], ServerFlags(), rules=rules, policy="quiet")
publish(plan, {needs}, [])
"""


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


def test_schedulers_write_one_series_and_the_higher_need(tmp_path: Path) -> None:
    """Of two processes, what is the same is one series, and a need of either counts."""
    for needs in (False, True):
        subprocess.run(  # noqa: S603 - the code is in this file
            [sys.executable, "-c", _SCHEDULER.format(needs=needs)],
            check=True,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        )
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))  # type: ignore[no-untyped-call]

    found = [own for family in registry.collect() for own in family.samples]

    assert {own.name: own.value for own in found} == {
        "backend_caps_needs_cpu_seq_lens": 1.0,
        "backend_caps_plan_info": 1.0,
    }
    assert [own.labels for own in found if own.labels] == [
        {
            "capability": "host_seq_lens",
            "phase": "server",
            "value": "exact",
            "cause": "acme",
            "role": "target",
            "states": "exact",
            "reason": "does not declare host_seq_lens",
        }
    ]
