from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from backend_caps.report.sections import Section
from backend_caps.report.terminal import show

Golden = Callable[[str, str], None]
Shown = Callable[[Iterable[Section]], str]


@pytest.fixture
def golden() -> Golden:
    """Compare a text with the whole of a file; `GOLDEN=write` writes the file and fails."""

    def compare(name: str, text: str) -> None:
        file = Path(__file__).parent / "golden" / name
        if os.environ.get("GOLDEN") == "write":
            file.write_bytes(text.encode())
            pytest.fail(f"{name} is written; read it, and run again")
        assert text == file.read_bytes().decode()

    return compare


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Print sections where the output is no terminal."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def print_them(sections: Iterable[Section]) -> str:
        show(sections)
        return capsys.readouterr().out

    return print_them
