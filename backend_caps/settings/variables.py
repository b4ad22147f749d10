"""Settings from the environment: a variable each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from backend_caps.resolution.engine import ENVIRONMENT_PREFIX as FLAG_PREFIX
from backend_caps.resolution.errors import nearest
from backend_caps.settings.errors import SettingValueError, UnknownSettingError
from backend_caps.settings.layers import FACTS, SECTIONS, LayerValues, SettingLayer

CONFIG = "BACKEND_CAPS_CONFIG"
"""The variable that names the file of settings."""
_PREFIX = "BACKEND_CAPS_"
_FACT_PREFIX = "BACKEND_CAPS_FACT_"
_NEAR = 0.8
"""How much of a variable's name has to be right for it to be meant; others may be anybody's."""
_SWITCH = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}

Word = Callable[[str], object]
"""Reads a variable's text; what it cannot read it hands on, for the setting to refuse."""


def plain(text: str) -> object:
    """Take a text as it is."""
    return text


def switch(text: str) -> object:
    """Read yes or no."""
    return _SWITCH.get(text.lower(), text)


def number(text: str) -> object:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        return text


def names(text: str) -> object:
    """Read names with commas between them; a blank text is none."""
    return [name.strip() for name in text.split(",") if name.strip()]


def folders(text: str) -> object:
    """Read paths with the system's separator between them; a blank text is none."""
    return [folder for folder in text.split(os.pathsep) if folder]


_LISTS = (names, folders)


def variable_of(key: str, name: str | None = None) -> str:
    """Name the variable of a setting, or of a name in a section."""
    if name is None:
        return _PREFIX + _upper(key)
    return (_FACT_PREFIX if key == FACTS else FLAG_PREFIX) + _upper(name)


def read_variables(environ: Mapping[str, str], words: Mapping[str, Word]) -> LayerValues:
    """Read the variables of settings; those of server flags are `ServerFlags.from_environ`'s.

    A blank variable is not given, unless it holds a list.

    Args:
        environ: the environment.
        words: by the settings' keys, how each is read.
    """
    said = LayerValues(layer=SettingLayer.ENVIRONMENT)
    keys = {variable_of(key): key for key in words if key not in SECTIONS}
    for variable in sorted(environ):
        text = environ[variable]
        if variable in keys:
            key = keys[variable]
            if text.strip() or words[key] in _LISTS:
                said.values[key] = words[key](text)
                said.places[key,] = variable
        elif variable.startswith(_FACT_PREFIX):
            _read_fact(said, variable, text)
        elif variable.startswith(_PREFIX) and not variable.startswith((FLAG_PREFIX, CONFIG)):
            _tell_near(said, variable, [*keys, CONFIG])
    return said


def _read_fact(said: LayerValues, variable: str, text: str) -> None:
    import yaml  # noqa: PLC0415 - 20 ms that only a fact is worth

    name = variable.removeprefix(_FACT_PREFIX).lower()
    facts = said.values.setdefault(FACTS, {})
    assert isinstance(facts, dict), "the section is made here alone"
    try:
        facts[name] = yaml.safe_load(text)
        said.places[FACTS, name] = variable
    except (ValueError, RecursionError, yaml.YAMLError):
        expected = "a word, a number or a list such as [a, b]"
        fault = SettingValueError(
            place=variable, name=f"{FACTS}.{name}", value=repr(text), expected=expected
        )
        said.faults.append(fault)


def _tell_near(said: LayerValues, variable: str, known: list[str]) -> None:
    """Refuse a variable that looks like one of ours; the prefix alone is no likeness."""
    bare = {each.removeprefix(_PREFIX): each for each in known}
    near = nearest(variable.removeprefix(_PREFIX), list(bare), cutoff=_NEAR)
    if near is not None:
        fault = UnknownSettingError(
            place="environment", name=variable, known=tuple(sorted(known)), meant=bare[near]
        )
        said.faults.append(fault)


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()
