"""The stored command lines against the engines' own source, read from their wheels."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from backend_caps.engines.sglang.command_line import read_command_line
from backend_caps.resolution.engine import ENGINES
from tests.upstream.sglang_wheel import find_wheel

pytestmark = pytest.mark.upstream


@pytest.mark.parametrize("name", ENGINES)
def test_stored_command_line_is_the_wheels(name: str) -> None:
    """What is stored of an engine's options and backends is what its source says."""
    path = files("backend_caps.resolution").joinpath("data", f"{name}.json")
    stored = json.loads(path.read_text("utf-8"))

    read = read_command_line(find_wheel(name.removeprefix("sglang-")))

    assert stored == read
