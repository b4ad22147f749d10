"""What vLLM 0.33.0's own processing says of command lines, on GPUs that are described to it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backend_caps.capability.gpu import gpus
from backend_caps.engines.model import model_of
from backend_caps.engines.reading import LaunchQuery
from backend_caps.engines.vllm.query import ask_launches

_PYTHON = Path(__file__).parents[2] / ".cache/engines/vllm-0.33.0/bin/python"
_CASES: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "tables" / "vllm_layers.toml").read_text("utf-8")
)["case"]


@pytest.mark.upstream
@pytest.mark.installed_engine
@pytest.mark.parametrize("case", [pytest.param(each, id=each["id"]) for each in _CASES])
def test_vllm_answers_for_a_gpu_that_is_not_there(case: Mapping[str, Any]) -> None:
    """Each kind of layer has its backend, and the graph mode is the one that is left."""
    query = LaunchQuery(
        lines=[case["line"].split()],
        gpu=gpus()[case["machine"]],
        num_gpus=8,
        model=model_of(case["model"]),
    )

    (launch,) = ask_launches(_PYTHON, query)

    assert launch.unchecked == ()
    if "takes" not in case:
        assert launch.refusal is not None
        assert case["says"] in launch.refusal.message
        assert launch.refusal.at.startswith("vllm/")
        return
    assert launch.refusal is None
    assert launch.graphs is not None
    found = [f"{own.num_layers} {own.role} {own.backend}" for own in launch.layers]
    graphs = launch.graphs
    assert (found, graphs.mode, graphs.by) == (case["takes"], case["mode"], case.get("by"))
    assert case.get("says", "") in " ".join(graphs.words)
