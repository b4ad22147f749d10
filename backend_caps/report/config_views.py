"""Settings as sections: a table of values and places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import JsonValue

from backend_caps.report.config_documents import ConfigDocument, PlacedValueDocument
from backend_caps.report.sections import Lines, Section, Table


def config_view(config: ConfigDocument) -> Iterator[Section]:
    """Show each setting with its value, who gives it, and what it goes before but the default."""
    rows = [
        (each.name, _text(each.value), each.place, "; ".join(_beside(each.overrides)))
        for each in config.settings
    ]
    yield Table(("setting", "value", "from", "instead of"), tuple(rows), cells="names")
    if config.file is None:
        yield Lines(("No file of settings is named; --config or BACKEND_CAPS_CONFIG names one.",))


def _beside(overrides: Iterable[PlacedValueDocument]) -> Iterator[str]:
    for said in overrides:
        if said.layer != "default":
            yield f"{_text(said.value)}, {said.place}"


def _text(value: JsonValue) -> str:
    """Write a value as a file has it."""
    match value:
        case None:
            return "not given"
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case list():
            return f"[{', '.join(map(_text, value))}]"
    return str(value)
