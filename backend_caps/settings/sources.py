"""The layers of settings below the command line: values, their places, and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from backend_caps.errors import BackendCapsError, CodedError
from backend_caps.resolution.engine import ENVIRONMENT_PREFIX as FLAG_PREFIX
from backend_caps.resolution.engine import YES_OR_NO
from backend_caps.resolution.errors import nearest

FACTS, SERVER = "facts", "server"
SECTIONS = (FACTS, SERVER)
"""The settings that are mappings: each name in one is set, and overridden, by itself."""
CONFIG = "BACKEND_CAPS_CONFIG"
"""The variable that names the file of settings."""
_PREFIX = "BACKEND_CAPS_"
_FACT_PREFIX = "BACKEND_CAPS_FACT_"
_NEAR = 0.8
"""Similarity from which a variable is taken for a misspelled one of ours."""

Parser = Callable[[str], object]
"""Reads a variable's text; returns it unread where the setting is to refuse it."""


class SettingLayer(Enum):
    """Where a value comes from; the first of these overrides the others."""

    COMMAND_LINE = "command line"
    """An option, or a server flag after `--`."""
    ENVIRONMENT = "environment"
    """A variable whose name begins with `BACKEND_CAPS_`."""
    FILE = "file"
    """The YAML file that `--config` or `BACKEND_CAPS_CONFIG` names."""
    DEFAULT = "default"
    """Built in."""


@dataclass(eq=False)
class SettingsError(CodedError):
    """A setting, or the file of settings, is refused."""

    codes: ClassVar[Mapping[str, str]] = {
        "file": "the file of settings is not there, or holds no mapping",
        "repeated": "a file has one key twice",
        "server-flag": "a server flag in a file has a value that it cannot have",
        "server-flag-name": "a server flag in a file is unknown to the engine, or ambiguous",
        "unknown": "there is no setting of that name",
        "value": "a setting has a value that it cannot have",
    }

    place: str = ""
    """The place of the setting: a variable, `file:line`, or a layer."""


def in_order(faults: Iterable[BackendCapsError]) -> list[BackendCapsError]:
    """Sort faults by place, lines of a file as numbers."""

    def key(fault: BackendCapsError) -> tuple[str, int]:
        place = fault.place if isinstance(fault, SettingsError) else ""
        file, _, line = place.rpartition(":")
        return (file, int(line)) if line.isdecimal() else (place, 0)

    return sorted(faults, key=key)


def unknown_setting(place: str, key: str, known: Iterable[str], meant: str | None) -> SettingsError:
    """Return the error of a name that no setting has."""
    remedy = f"Did you mean {meant!r}?" if meant else "Take it out."
    return SettingsError(
        "unknown",
        f"{place}: there is no setting {key!r}; expected one of: {', '.join(known)}. {remedy}",
        place,
    )


def wrong_value(place: str, name: str, value: object, expected: str) -> SettingsError:
    """Return the error of a value that a setting cannot have."""
    text = f"{place}: {name} is {value!r}; expected {expected}. Correct the value."
    return SettingsError("value", text, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedValue:
    """A value of one setting, and its place."""

    layer: SettingLayer
    place: str
    """The option, the variable, `file:line`, or the word default."""
    value: object


@dataclass(slots=True, kw_only=True)
class LayerValues:
    """The unchecked values of one layer, by the settings' keys."""

    layer: SettingLayer
    folder: Path | None = None
    """The folder that relative paths start at; None is the working directory."""
    values: dict[str, object] = field(default_factory=dict)
    places: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The place of each key, of each name in a section, and of each item of a list."""
    faults: list[BackendCapsError] = field(default_factory=list)

    def place(self, *path: str) -> str:
        """Return the place of a value, else that of the nearest part around it."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, self.layer.value)

    def section(self, key: str) -> dict[str, object]:
        """Return the values of a section, by name; empty where it is no mapping."""
        section = self.values.get(key)
        return section if isinstance(section, dict) else {}


def _switch(text: str) -> object:
    return YES_OR_NO.get(text.lower(), text)


def _number(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


_LISTS: Mapping[str, Parser] = {
    "path": lambda text: [folder for folder in text.split(os.pathsep) if folder],
    "plugins": lambda text: [name.strip() for name in text.split(",") if name.strip()],
}
"""By key, how a variable's text is read as a list; a blank one is an empty list."""
_PARSERS: Mapping[str, Parser] = {
    **_LISTS,
    **dict.fromkeys(("agreement-deadline", "discovery-deadline"), _number),
    **dict.fromkeys(("require-evidence", "verbose"), _switch),
}
"""By key, the parser of a variable's text; other keys take the text as it is."""


def variable_of(key: str, name: str | None = None) -> str:
    """Name the variable of a setting, or of a name in a section."""
    prefix = _PREFIX if name is None else _FACT_PREFIX if key == FACTS else FLAG_PREFIX
    return prefix + (name or key).replace("-", "_").upper()


def read_environment(environ: Mapping[str, str], settings: Iterable[str]) -> LayerValues:
    """Read the variables of settings; those of server flags are `ServerFlags.from_environ`'s.

    A blank variable is not given, unless it holds a list.

    Args:
        environ: the environment.
        settings: their keys.
    """
    layer = LayerValues(layer=SettingLayer.ENVIRONMENT)
    keys = {variable_of(key): key for key in settings if key not in SECTIONS}
    known = {each.removeprefix(_PREFIX): each for each in (*keys, CONFIG)}
    for variable in sorted(environ):
        text, key = environ[variable], keys.get(variable)
        if key is not None:
            if text.strip() or key in _LISTS:
                layer.values[key] = _PARSERS.get(key, str)(text)
                layer.places[key,] = variable
        elif variable.startswith(_FACT_PREFIX):
            _read_fact(layer, variable, text)
        elif variable.startswith(_PREFIX) and not variable.startswith((FLAG_PREFIX, CONFIG)):
            # Compared without the prefix, which other programs' variables may share.
            near = nearest(variable.removeprefix(_PREFIX), list(known), cutoff=_NEAR)
            if near is not None:
                names = sorted(known.values())
                layer.faults.append(unknown_setting("environment", variable, names, known[near]))
    return layer


def _read_fact(layer: LayerValues, variable: str, text: str) -> None:
    import yaml  # noqa: PLC0415 - 20 ms that only a fact is worth

    name = variable.removeprefix(_FACT_PREFIX).lower()
    facts = layer.values[FACTS] = layer.section(FACTS)
    try:
        facts[name] = yaml.safe_load(text)
        layer.places[FACTS, name] = variable
    except (ValueError, RecursionError, yaml.YAMLError):
        expected = "a word, a number or a list such as [a, b]"
        layer.faults.append(wrong_value(variable, f"{FACTS}.{name}", text, expected))
