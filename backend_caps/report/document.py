"""What every document of the package's JSON has in common."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import PydanticSerializationError


def is_none(value: object) -> bool:
    """Tell whether a key has nothing to say."""
    return value is None


LEFT_OUT = Field(exclude_if=is_none)
"""A key that is there only where it has something to say."""


def legible(text: str) -> str:
    r"""Write out as `\udcff` what UTF-8 cannot hold: surrogates without their other half.

    They stand for the bytes of a path that is not UTF-8, or come in a plugin's own words.
    """
    return text.encode(errors="backslashreplace").decode()


def json_text(
    document: BaseModel, *, indent: int | None = None, exclude_defaults: bool = False
) -> str:
    """Write a document as JSON that every reader takes: each of its texts is legible."""
    try:
        return document.model_dump_json(indent=indent, exclude_defaults=exclude_defaults)
    except PydanticSerializationError:  # rare, and looking for surrogates in advance costs time
        data: JsonValue = document.model_dump(mode="json", exclude_defaults=exclude_defaults)
        return json.dumps(legible_json(data), indent=indent, ensure_ascii=False)


def legible_json(value: JsonValue) -> JsonValue:
    """Make every text in a JSON value legible."""
    match value:
        case str():
            return legible(value)
        case list():
            return [legible_json(inner) for inner in value]
        case dict():
            return {legible(key): legible_json(inner) for key, inner in value.items()}
    return value


class Document(BaseModel):
    """A part of a document: frozen, and without keys that its schema does not name."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        serialize_by_alias=True,
        defer_build=True,
    )
