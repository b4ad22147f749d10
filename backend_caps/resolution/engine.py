"""What an engine's command line takes: data, read from each version's source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

ENGINES = ("sglang-0.5.13", "sglang-0.5.23")
"""The engine versions whose command lines are known."""


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


@cache
def engine(name: str) -> Engine:
    """Read the stored command line of one of `ENGINES`."""
    text = files("backend_caps.resolution").joinpath("data", f"{name}.json").read_text("utf-8")
    stored = json.loads(text)
    return Engine(
        name=name,
        options={option: tuple(group) for group in stored["options"] for option in group},
        attention_backends=frozenset(stored["attention_backends"]),
    )
