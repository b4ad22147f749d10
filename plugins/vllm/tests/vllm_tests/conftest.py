"""What the tests of a worker share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from backend_caps_vllm.metrics import FOLDER

from .small_vllm import platform

Logged = Callable[[], list[tuple[str, str]]]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process of a server on a CPU, whose metrics read a folder."""
    monkeypatch.setitem(sys.modules, "vllm.platforms", platform())
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    for name in ("POLICY", "LOCK", "PLUGINS", "CONFIG"):
        monkeypatch.delenv(f"BACKEND_CAPS_{name}", raising=False)
    return tmp_path


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """List what the plugin logged, the level and the line."""
    caplog.set_level(logging.INFO, "vllm")
    return lambda: [
        (each.levelname, each.getMessage())
        for each in caplog.records
        if each.name == "vllm.backend_caps_vllm"
    ]
