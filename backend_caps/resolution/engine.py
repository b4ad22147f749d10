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
    """Read the stored command line of one of `ENGINES`."""
    stored = json.loads(read_data(f"{name}.json"))
    return Engine(
        name=name,
        options={option: tuple(group) for group in stored["options"] for option in group},
        attention_backends=frozenset(stored["attention_backends"]),
    )
