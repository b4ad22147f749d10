"""A page for each JSON schema: its parts as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from docs.tools.markdown import table
from docs.tools.schemas import path_of

Schema = dict[str, Any]
_REFERENCE = "#/$defs/"
_ANYTHING = "anything"


def schema_markdown(name: str) -> str:
    """Write a schema as a page."""
    file = path_of(name)
    whole: Schema = json.loads(file.read_text("utf-8"))
    parts: dict[str, Schema] = whole.get("$defs", {})
    head = f"# {name.replace('-', ' ').capitalize()}\n\n{_lines(whole.get('description', ''))}"
    raw = f"The schema itself: [{file.name}](../{file.name})."
    sections = [_part(title, part) for title, part in parts.items() if part]
    return "\n\n".join((head, raw, *_fields(whole), *sections)) + "\n"


def _part(title: str, part: Schema) -> str:
    told = _lines(part.get("description", ""))
    return "\n\n".join((f"## {title}", *([told] if told else []), *_fields(part)))


def _lines(text: str) -> str:
    """Write a description whose later lines are an enum's members as a list."""
    first, *members = text.splitlines() or [""]
    return "\n\n".join((first, "\n".join(f"* {each}" for each in members))).strip()


def _fields(part: Schema) -> Iterator[str]:
    rows = [
        (f"`{name}`", type_text(field), _default(name, field, part), field.get("description", ""))
        for name, field in part.get("properties", {}).items()
    ]
    if rows:
        yield table(("key", "value", "default", "what it is"), rows)
    elif "properties" not in part:
        yield f"It is {type_text(part)}."


def _default(name: str, field: Schema, part: Schema) -> str:
    if name in part.get("required", ()):
        return "required"
    return _shown(field["default"]) if "default" in field else ""


def type_text(field: Schema) -> str:
    """Write what a value can be, with links to the parts of the schema."""
    match field:
        case {"$ref": str(reference)}:
            name = reference.removeprefix(_REFERENCE)
            return _ANYTHING if name == "JsonValue" else f"[{name}](#{name.lower()})"
        case {"anyOf": list(options)} | {"oneOf": list(options)}:
            return " or ".join(dict.fromkeys(map(type_text, options)))
        case {"const": value}:
            return _shown(value)
        case {"enum": list(values)}:
            return ", ".join(map(_shown, values))
        case {"type": "array"}:
            return f"a list: {_items(field)}"
        case {"type": "object", "additionalProperties": dict(inner)}:
            return f"an object of {type_text(inner)}"
        case {"type": str(kind)}:
            return _PLAIN[kind]
        case _:
            return _ANYTHING


_PLAIN = {
    "boolean": "`true`, `false`",
    "integer": "a number",
    "null": "`null`",
    "number": "a number",
    "object": "an object",
    "string": "a text",
}


def _shown(value: object) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _items(field: Schema) -> str:
    places = [type_text(each) for each in field.get("prefixItems", ())]
    rest = field.get("items")
    return ", ".join(places) or (type_text(rest) if isinstance(rest, dict) else _ANYTHING)
