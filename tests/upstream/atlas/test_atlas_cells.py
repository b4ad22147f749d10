"""The check of drawn cells finds a cell that the source does not state."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.upstream.atlas.cells import main

ROOT = """
class AttentionBackend(ABC):
    supported_dtypes = [torch.float16]

    @classmethod
    def supports_dtype(cls, dtype):
        return dtype in cls.supported_dtypes
"""
ONE = """
from .backend import AttentionBackend

class One(AttentionBackend):
    supported_dtypes = [torch.bfloat16]
"""


def _planted(folder: Path, **cell: object) -> list[str]:
    """Write a wheel of one backend and the atlas' data on it; return the arguments."""
    with zipfile.ZipFile(folder / "vllm-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("vllm/backend.py", ROOT)
        wheel.writestr("vllm/one.py", ONE)
    stated = {"origin": "declared", "words": "supported_dtypes = [torch.bfloat16]"}
    dtypes = {**stated, "declared_at": "vllm/one.py:5", **cell}
    one = {"path": "vllm.one.One", "cells": {"dtypes": dtypes}}
    document = {"archive": "vllm-1.0-py3-none-any.whl", "classes": {"One": one}}
    data = folder / "data" / "vllm"
    data.mkdir(parents=True)
    (data / "1.0.json").write_text(json.dumps(document))
    return [str(data.parent), str(folder), "--number", "1"]


def test_cell_that_the_source_states_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cell with the value of the source is right."""
    status = main(_planted(tmp_path, value=["bfloat16"]))

    assert (status, capsys.readouterr().out.split()[-3:]) == (0, ["1", "0", "0"])


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        pytest.param({"value": ["float16"]}, "the source gives {bfloat16}", id="value"),
        pytest.param({"value": "depends", "origin": "conditional"}, "decides it", id="condition"),
        pytest.param(
            {"value": ["bfloat16"], "origin": "inherited", "inherited_from": "AttentionBackend"},
            "it is stated by [One]",
            id="origin",
        ),
        pytest.param(
            {"value": ["bfloat16"], "declared_at": "vllm/backend.py:6"},
            "does not bind supported_dtypes",
            id="line",
        ),
        pytest.param(
            {"value": ["bfloat16"], "words": "supported_dtypes = [torch.bfloat17]"},
            "the source lacks bfloat17",
            id="words",
        ),
    ],
)
def test_cell_that_the_source_does_not_state_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cell: dict[str, object], why: str
) -> None:
    """A cell with another value, origin, line or words than the source is wrong, and printed."""
    status = main(_planted(tmp_path, **cell))

    printed = capsys.readouterr().out
    assert (status, printed.split()[-3:]) == (1, ["0", "1", "0"])
    assert why in printed
