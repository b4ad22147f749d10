"""Cases of tests, as TOML has them: sources and what is read of them stand in their own lines."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

_FOLDER = Path(__file__).parent / "data"


def data(file: str) -> dict[str, Any]:
    """Read a file of cases or texts."""
    return tomllib.loads((_FOLDER / f"{file}.toml").read_text("utf-8"))


def table(file: str, name: str) -> pytest.MarkDecorator:
    """Parametrize a test by a table of a file: each row's keys are arguments, `id` its name.

    What a row leaves out is None; lists in a list are tuples.
    """
    rows = data(file)[name]
    names = list(dict.fromkeys(key for row in rows for key in row if key != "id"))
    cases = [
        pytest.param(*(_value(row.get(name)) for name in names), id=row.get("id")) for row in rows
    ]
    return pytest.mark.parametrize(names, cases)


def _value(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [tuple(each) if isinstance(each, list) else each for each in value]
