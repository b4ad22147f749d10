"""`select --engine vllm`: which backend each kind of layer takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from backend_caps.report.launches import EngineLayersDocument
from tests.cli.conftest import CommandLine
from tests.unit.engines.vllm.building import write_importable

_H100 = "--fact device_name=H100"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small engine and its models."""
    return write_importable(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(autouse=True)
def _importable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))


@pytest.fixture(params=["asked", "read"])
def select(request: pytest.FixtureRequest, place: Path) -> str:
    """The command, of an engine that is asked or whose source is read."""
    asked, read = f"--engine-python {sys.executable}", f"--source {place / 'engine'}"
    return f"select --engine vllm {asked if request.param == 'asked' else read} {_H100}"


def test_layers_are_shown_with_their_backends_and_the_mode_of_graphs(
    select: str, place: Path, acme: CommandLine
) -> None:
    """So is why each other backend is not taken, and what the engine changes."""
    done = acme.run(f"{select} -- vllm serve {place}/windows --cudagraph-mode FULL")

    words = " ".join(done.stdout.split())
    assert done.exit_code == 0
    assert words.startswith(f"vllm-9.0 starts {place}/windows on H100")
    assert "1 AttentionLayerBase target WINDOW UNIFORM_BATCH FullSpec 16 64 128" in words
    assert "graphs: FULL_AND_PIECEWISE, and not FULL the least is UNIFORM_BATCH" in words
    assert "because WindowBackend supports UNIFORM_BATCH, not FULL" in words
    assert "For layers with head_size 64, has_sliding_window" in words
    assert "FULL no sliding window not supported" in words
    assert "cache_config.block_size not given 16 vllm/engine/arg_utils.py:" in words


def test_least_of_graphs_is_named_only_where_there_is_one(
    select: str, place: Path, acme: CommandLine
) -> None:
    """Three layers that are alike are one row."""
    done = acme.run(f"{select} --model-config {place}/plain -- vllm serve --attention-backend FULL")

    words = " ".join(done.stdout.split())
    assert "3 AttentionLayerBase target FULL ALWAYS FullSpec 16 64" in words
    assert "graphs: FULL_AND_PIECEWISE For layers" in words


def test_refusal_ends_with_status_1(select: str, place: Path, acme: CommandLine) -> None:
    """The engine's own words and line are shown, and nothing of layers."""
    done = acme.run(f"{select} --format json -- --model {place}/refused")
    shown = acme.run(f"{select} -- --model {place}/refused")

    document = EngineLayersDocument.model_validate(json.loads(done.stdout))
    assert done.exit_code == shown.exit_code == 1
    assert document.starts is False
    assert document.layers == []
    assert "because vllm/model_executor/model_loader/utils.py:" in shown.stdout
    assert "the model's own words" in shown.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{_H100} --model-config llama-3.1-8b", "Expected one of the two"),
        (
            f"--engine-python {sys.executable} --source . {_H100} --model-config llama-3.1-8b",
            "Expected one of the two",
        ),
        (f"--engine-python {sys.executable} {_H100}", "and --model-config MODEL"),
        (f"--engine-python {sys.executable} --model-config llama-3.1-8b", "add --fact device_name"),
    ],
)
def test_what_is_missing_is_named(acme: CommandLine, options: str, message: str) -> None:
    """A Python with vLLM, a GPU and a model are needed."""
    done = acme.run(f"select --engine vllm {options} -- --tensor-parallel-size 2")

    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
