"""What becomes of command lines of vLLM, read from its wheel, beside answers of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from backend_caps.resolution.launch import GraphMode, Launch, LayerGroup, Refusal
from tests.upstream.launch_trials import RECORDED, TABLES, Verdict, trials_of
from tests.upstream.launches import Case
from tests.upstream.trial_engines import VLLM

_VERSION = "0.33.0"
_RECORDED = [
    *map(json.loads, (TABLES / RECORDED["vllm"].format(_VERSION)).read_text("utf-8").splitlines())
]


def _recorded(line: Mapping[str, Any]) -> Launch:
    own: dict[str, Any] = {"engine": f"vllm-{_VERSION}", "machine": line["machine"]}
    if "message" in line:
        refusal = Refusal(message=line["message"], at=line["refused at"])
        return Launch(**own, model=line["model"], refusal=refusal)
    return Launch(
        **own,
        model=line["model"],
        values=line["values"],
        layers=tuple(LayerGroup(**each) for each in line["layers"]),
        graphs=None if line["graphs"] is None else GraphMode(**line["graphs"]),
    )


@pytest.mark.vllm_wheel
@pytest.mark.parametrize("machine", VLLM.machines)
def test_reader_agrees_with_recorded_answers(machine: str) -> None:
    """VLLM's own answers, as `make upstream` found them, are the reader's."""
    lines = [line for line in _RECORDED if line["machine"] == machine]
    cases = [Case(line["machine"], line["model"], tuple(line["argv"])) for line in lines]

    found = [*trials_of(VLLM, _VERSION, cases, map(_recorded, lines))]

    assert found
    assert not [str(trial) for trial in found if trial.verdict.is_wrong]
    assert sum(trial.verdict is Verdict.NOT_CHECKED for trial in found) <= len(found) / 10
