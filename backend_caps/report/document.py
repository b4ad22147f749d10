"""What every document of the package's JSON has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


def is_none(value: object) -> bool:
    """Tell whether a key has nothing to say."""
    return value is None


LEFT_OUT = Field(exclude_if=is_none)
"""A key that is there only where it has something to say."""


class Document(BaseModel):
    """A part of a document: frozen, and without keys that its schema does not name."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        serialize_by_alias=True,
        defer_build=True,
    )
