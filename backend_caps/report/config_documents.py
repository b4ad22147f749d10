"""The JSON of settings: the value of each, who gave it, and what it goes before."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from backend_caps.report.document import Document

LayerName = Literal["command line", "environment", "file", "default"]


class PlacedValueDocument(Document):
    """A value of a setting that does not count, and where it stands."""

    value: JsonValue
    """As a file would have it; null where nothing is given."""
    layer: LayerName
    """Who gives it."""
    place: str
    """The option, the variable, `file:line`, or the word default."""


class SettingDocument(Document):
    """A setting with the value that counts."""

    name: str
    """As files and options spell it; `facts.<name>` and `server.<flag>` in a section."""
    value: JsonValue
    """As a file would have it; null where nothing is given."""
    layer: LayerName
    """Who gives it; the first of these goes before the others."""
    place: str
    """The option, the variable, `file:line`, or the word default."""
    overrides: list[PlacedValueDocument]
    """What else is said of it, and does not count; the default at last."""


class ConfigDocument(Document):
    """Every setting, and who decides it."""

    schema_: Annotated[Literal["backend-caps/config@1"], Field(alias="schema")]
    file: str | None
    """The file that was read; null where none is named."""
    settings: list[SettingDocument]
    """Each setting; of the sections, what is said."""
