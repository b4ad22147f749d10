from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backend_caps.report.sections import Sections
from backend_caps.report.terminal import show
from tests.cases import Golden, golden_in

__all__ = ["Golden", "Shown"]

Shown = Callable[[Sections], str]


@pytest.fixture
def golden() -> Golden:
    """Compare a text with the whole of a file."""
    return golden_in(Path(__file__).parent / "golden")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Print sections where the output is no terminal."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def print_them(sections: Sections) -> str:
        show(sections)
        return capsys.readouterr().out

    return print_them
