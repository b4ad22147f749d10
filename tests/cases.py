"""Cases of parametrized tests: those that stand in text files, and axes of grids."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

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


Golden = Callable[[str, str], None]
"""Compares a text with the whole of a file, by its name."""


def golden_in(folder: Path) -> Golden:
    """Compare texts with files of a folder; `GOLDEN=write` writes the file and fails."""

    def compare(name: str, text: str) -> None:
        file = folder / name
        if os.environ.get("GOLDEN") == "write":
            file.write_bytes(text.encode())
            pytest.fail(f"{name} is written; read it, and run again")
        assert text == file.read_bytes().decode()

    return compare


def axis(
    names: str | tuple[str, ...],
    values: Iterable[object],
    ids: Sequence[str] | Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrize by one axis of a grid, of which `make test` runs the first value alone.

    The others are marked `slow`; of several axes, that is the first value of each.
    """
    first, *others = (ParameterSet.extract_from(value, isinstance(names, str)) for value in values)
    slow = [own._replace(marks=[*own.marks, pytest.mark.slow]) for own in others]
    return pytest.mark.parametrize(names, [first, *slow], ids=ids)
