"""The generated part of `docs/reference/settings.md`."""

from __future__ import annotations

from enum import Enum

from pydantic.fields import FieldInfo

from backend_caps.capability.facts import Facts
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Policy
from backend_caps.settings.settings import KEYS, Settings
from backend_caps.settings.sources import FACTS, SECTIONS, SERVER, variable_of
from docs.tools.markdown import table
from docs.tools.sources import attribute_docs
from docs.tools.values import values_of


def settings() -> str:
    """Give each setting with its spellings, by what it takes and what is built in."""
    docs = attribute_docs()["Settings"]
    rows = []
    for name, field in Settings.model_fields.items():
        key = KEYS[name]
        is_section = key in SECTIONS
        variable = variable_of(key, "<NAME>") if is_section else variable_of(key)
        option = {FACTS: "`--fact`", SERVER: "after `--`"}.get(key, f"`--{key}`")
        default = "" if is_section or field.default in {None, ()} else _written(field.default)
        rows.append((f"`{key}`", f"`{variable}`", option, _taken(field), default, docs[name]))
    return table(("in a file", "variable", "option", "takes", "default", "meaning"), rows)


def _taken(field: FieldInfo) -> str:
    """Write what a setting takes, as a file has it."""
    if field.annotation is Policy:
        return ", ".join(f"`{policy.value}`" for policy in Policy)
    if field.annotation in {Facts, ServerFlags}:
        return "a mapping"
    if field.annotation is bool:
        return "`true`, `false`"
    taken = values_of(field.annotation).removesuffix(" or not given")
    return taken.replace("several of", "a list of")


def _written(value: object) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f"`{value:g}`"
        case Enum():
            return f"`{value.value}`"
    return f"`{value}`"
