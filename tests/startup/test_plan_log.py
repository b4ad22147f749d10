"""What stands in a server's log of its plan."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from backend_caps.startup.configure import log_plan
from tests.unit.building import READS, at_rank, flags, use


def test_line_names_the_rank_and_machine_of_a_cause(caplog: pytest.LogCaptureFixture) -> None:
    """Who reads one rank's log sees which rank's backend has forced a value."""
    caplog.set_level(logging.INFO, "backend_caps")
    plan = at_rank(
        resolve([use("needy", READS)], flags(), rules=RuleSet.builtin("sglang-0.5.13")), 2
    )
    ranked = plan.with_values(
        lambda _, own: replace(
            own, causes=tuple(replace(cause, host="node-b") for cause in own.causes)
        )
    )

    log_plan(ranked)

    assert "host_seq_lens=exact (backend needy on rank 2, node-b)" in caplog.messages[0]
