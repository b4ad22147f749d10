"""What an engine's command line takes: data, read from each version's source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ENGINES = ("sglang-0.5.13", "sglang-0.5.23")
"""The engine versions whose command lines and rules are known."""
DEFAULT_ENGINE = "sglang-0.5.13"
"""The version of the documents that the project comes from."""
RUNTIME = "backend-caps-1"
"""The rules of this package's own engine (`backend_caps.runtime`)."""
RULE_SETS = (*ENGINES, RUNTIME)
"""The rule sets that come with the package."""
_COMMAND_LINES = {RUNTIME: "sglang-0.5.13"}
"""Whose flags are taken by an engine that has no command line of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The options and the backends' names of one version of an engine."""

    name: str
    options: Mapping[str, tuple[str, ...]]
    """Every option with its spellings, itself included."""
    attention_backends: frozenset[str]

    def spellings(self, field: str) -> tuple[str, ...]:
        """List the options that set a field of `ServerFlags`."""
        option = option_of(field)
        return self.options.get(option, (option,))


def option_of(field: str) -> str:
    """Write a field's name as its option on the command line."""
    return "--" + field.replace("_", "-")


def read_data(name: str) -> str:
    """Read one of the data files that come with the package."""
    return (Path(__file__).parent / "data" / name).read_text("utf-8")


@cache
def engine(name: str) -> Engine:
    """Read the command line that goes with one of `RULE_SETS`."""
    stored = json.loads(read_data(f"{_COMMAND_LINES.get(name, name)}.json"))
    return Engine(
        name=name,
        options={option: tuple(group) for group in stored["options"] for option in group},
        attention_backends=frozenset(stored["attention_backends"]),
    )
