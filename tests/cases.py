"""Cases that stand in text files: what is given, and the answer to it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet


def cases_of(file: Path) -> list[ParameterSet]:
    r"""Read a block a case: `=== name`, `$ what is given`, and the answer; `\n` is a line break."""
    blocks = re.split(r"^=== ", file.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return [_case(*block.split("\n", 2)) for block in blocks]


def _case(name: str, given: str, answer: str) -> ParameterSet:
    given = given.removeprefix("$ ").replace("\\n", "\n")
    return pytest.param(given, answer.strip("\n"), id=name)


def compare(file: Path, given: str, expected: str, answer: str) -> None:
    """Require the answer of a case; `GOLDEN=write` writes it into the file instead, and fails."""
    if os.environ.get("GOLDEN") == "write":
        head = f"$ {given}\n"
        file.write_text(file.read_text("utf-8").replace(head + expected, head + answer), "utf-8")
        pytest.fail(f"{file.name} is written; read it, and run again")
    assert answer == expected
