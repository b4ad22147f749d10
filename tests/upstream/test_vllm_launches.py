"""What becomes of command lines of vLLM, read from its wheel, beside answers of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from backend_caps.resolution.launch import CacheGroup, GraphMode, Launch, LayerGroup, Refusal
from tests.upstream.launch_trials import RECORDED, TABLES, Verdict, read, trials_of
from tests.upstream.launches import Case
from tests.upstream.trial_engines import VLLM, VLLM_ROCM, TrialEngine

_VERSION = "0.33.0"
_RELEASES = ("0.15.1", "0.32.0", _VERSION)
_SAMPLE = "H100"
"""The machine whose lines `make test-all` compares; `make vllm` compares those of the others."""
_MACHINES = [
    pytest.param(
        engine,
        machine,
        marks=pytest.mark.slow if machine == _SAMPLE else pytest.mark.vllm_wheel,
        id=f"{engine}-{machine}",
    )
    for engine in (VLLM, VLLM_ROCM)
    for machine in engine.machines
]


@cache
def _table(engine: TrialEngine) -> Sequence[Mapping[str, Any]]:
    path = TABLES / RECORDED[engine.key].format(_VERSION)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


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
        caches=tuple(CacheGroup(**each) for each in line["caches"]),
        graphs=None if line["graphs"] is None else GraphMode(**line["graphs"]),
    )


@pytest.mark.parametrize(("engine", "machine"), _MACHINES)
def test_reader_agrees_with_recorded_answers(engine: TrialEngine, machine: str) -> None:
    """VLLM's own answers, as `make upstream` found them, are the reader's."""
    lines = [line for line in _table(engine) if line["machine"] == machine]
    cases = [Case(line["machine"], line["model"], tuple(line["argv"])) for line in lines]

    found = [*trials_of(engine, _VERSION, cases, map(_recorded, lines))]

    assert found
    assert not [str(trial) for trial in found if trial.verdict.is_wrong]
    assert sum(trial.verdict is Verdict.NOT_CHECKED for trial in found) <= len(found) / 10


@pytest.mark.vllm_wheel
@pytest.mark.parametrize("version", _RELEASES)
@pytest.mark.parametrize(
    ("case", "backends"),
    [
        pytest.param(Case("H100", "llama-3.1-8b", ()), {"FLASH_ATTN"}, id="plain"),
        pytest.param(
            Case("B200", "deepseek-v3", ("--tensor-parallel-size", "8")),
            {"FLASHINFER_MLA"},
            id="MLA",
        ),
        pytest.param(
            Case("H100", "qwen3-next-80b", ("--tensor-parallel-size", "4")),
            {"FLASH_ATTN", "GDN_ATTN"},
            id="state",
        ),
        pytest.param(
            Case("MI355X", "deepseek-v3", ("VLLM_ROCM_USE_AITER=1", "--tensor-parallel-size", "8")),
            {"ROCM_AITER_MLA"},
            id="ROCm",
        ),
    ],
)
def test_release_is_followed_to_its_graphs(version: str, case: Case, backends: set[str]) -> None:
    """Each release has its own functions, which are followed to the groups of the cache."""
    found = read(VLLM, version, case)

    assert found.unchecked == ()
    assert {each.backend for each in found.layers} == backends
    assert sum(each.num_layers for each in found.caches) == sum(g.num_layers for g in found.layers)
    assert found.graphs is not None
    assert found.graphs.mode == "FULL_AND_PIECEWISE"


_ROPE = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_GEMMA = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"}
_NESTED = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {"num_hidden_layers": 8},
}


@pytest.mark.vllm_wheel
@pytest.mark.parametrize(
    ("config", "layers"),
    [
        pytest.param(
            {**_GEMMA, "num_hidden_layers": 7, "rope_parameters": _ROPE},
            [(5, "FLASH_ATTN", 256), (2, "FLASH_ATTN", 512)],
            id="values of some layers, made from a mapping",
        ),
        pytest.param(
            _NESTED, [(6, "GDN_ATTN", None), (2, "FLASH_ATTN", 256)], id="a part's types of layers"
        ),
    ],
)
def test_layers_are_of_what_transformers_computes(
    config: Mapping[str, object], layers: list[object], tmp_path: Path
) -> None:
    """A file without the values that a class computes has the layers that vLLM builds of them."""
    (tmp_path / "config.json").write_text(json.dumps(config))

    found = read(VLLM, _VERSION, Case("H100", str(tmp_path), ()))

    assert found.starts
    assert [(g.num_layers, g.backend, g.sizes.get("head_size")) for g in found.layers] == layers


@pytest.mark.vllm_wheel
def test_sparse_attention_of_consumer_gpus_is_that_of_the_pinned_flashinfer() -> None:
    """VLLM looks whether FlashInfer's functions are there, which its pinned release has."""
    found = read(VLLM, _VERSION, Case("RTXPRO6000", "deepseek-v3.2", ()))

    assert found.starts
    backends = {each.backend for each in found.layers}
    assert backends == {"DEEPSEEK_V32_INDEXER", "FLASHINFER_MLA_SPARSE_SM120"}
