"""Where a setting's value can come from, and which goes before which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from backend_caps.errors import BackendCapsError

FACTS, SERVER = "facts", "server"
SECTIONS = (FACTS, SERVER)
"""The settings that are mappings: each name in one is given, and gone before, by itself."""


class SettingLayer(Enum):
    """Who gives a value; whoever stands first goes before the others."""

    COMMAND_LINE = "command line"
    """An option, or a server flag after `--`."""
    ENVIRONMENT = "environment"
    """A variable whose name begins with `BACKEND_CAPS_`."""
    FILE = "file"
    """The YAML file that `--config` or `BACKEND_CAPS_CONFIG` names."""
    DEFAULT = "default"
    """Nobody; it is built in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedValue:
    """A value of one setting, and where it stands."""

    layer: SettingLayer
    place: str
    """The option, the variable, `file:line`, or the word default."""
    value: object


@dataclass(slots=True, kw_only=True)
class LayerValues:
    """What one layer says before it is checked, by the settings' keys."""

    layer: SettingLayer
    folder: Path | None = None
    """Where relative paths begin; None is the working directory."""
    values: dict[str, object] = field(default_factory=dict)
    places: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Where a key stands, a name within a section, and an item of a list."""
    faults: list[BackendCapsError] = field(default_factory=list)

    def place(self, *where: str) -> str:
        """Tell where a value stands, or the nearest thing around it that has a place."""
        while where not in self.places and where:
            where = where[:-1]
        return self.places.get(where, self.layer.value)

    def section(self, key: str) -> Mapping[str, object]:
        """Return what is said in a section, by name; nothing where it is none."""
        section = self.values.get(key)
        return section if isinstance(section, dict) else {}
