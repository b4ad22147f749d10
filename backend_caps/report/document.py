"""The base class of JSON documents, their text, and capability values as JSON."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import PydanticSerializationError

from backend_caps.capability.sets import Conflict, Exact, MultipleOf, OneOf, Sizes, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, NO_LIMIT, Capabilities


def is_none(value: object) -> bool:
    """Return whether a value is None, so that its key is left out."""
    return value is None


LEFT_OUT = Field(exclude_if=is_none)
"""A key that is left out where its value is None."""


class Document(BaseModel):
    """A part of a document: frozen, and without keys that its schema does not name.

    A field that is a document can be given any object with the same attributes.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        from_attributes=True,
        validate_by_name=True,
        serialize_by_alias=True,
        defer_build=True,
    )

    @classmethod
    def of(cls, source: object, **others: object) -> Self:
        """Make a document of an object's attributes; `others` go before these.

        A field with a default may have no attribute. An enumeration's member becomes its value.
        """
        names = {name for name in cls.model_fields.keys() - others.keys() if hasattr(source, name)}
        values = {name: getattr(source, name) for name in names}
        plain = {name: v.value if isinstance(v, Enum) else v for name, v in values.items()}
        return cls.model_validate(plain | others)


def legible(text: str) -> str:
    r"""Escape as `\udcff` what UTF-8 cannot encode: lone surrogates.

    They stand for the bytes of a path that is not UTF-8, or come from a plugin's own text.
    """
    return text.encode(errors="backslashreplace").decode()


def json_text(
    document: BaseModel, *, indent: int | None = None, exclude_defaults: bool = False
) -> str:
    """Write a document as JSON that every reader accepts: its texts are valid UTF-8."""
    try:
        return document.model_dump_json(indent=indent, exclude_defaults=exclude_defaults)
    except PydanticSerializationError:  # rare, and looking for surrogates in advance costs time
        data: JsonValue = document.model_dump(mode="json", exclude_defaults=exclude_defaults)
        return json.dumps(legible_json(data), indent=indent, ensure_ascii=False)


def legible_json(value: JsonValue) -> JsonValue:
    """Escape what UTF-8 cannot encode in every text of a JSON value."""
    match value:
        case str():
            return legible(value)
        case list():
            return [legible_json(inner) for inner in value]
        case dict():
            return {legible(key): legible_json(inner) for key, inner in value.items()}
    return value


def json_of(value: object) -> JsonValue:
    """Write a value of a capability, or an enumeration's member, as JSON in a stable order.

    No limit is null. What is JSON already is returned as it is.
    """
    match value:
        case None | bool() | float() | str() | list() | dict():
            return value
        case int():
            return None if value == NO_LIMIT else value
        case Enum():
            return str(value.value)
        case frozenset():
            return sorted(str(each.value) if isinstance(each, Enum) else each for each in value)
        case tuple():
            return [str(window) for window in value]
    return _json_of_sizes(value)


def _json_of_sizes(value: object) -> JsonValue:
    match value:
        case Exact(size):
            return {"exact": size}
        case MultipleOf(size):
            return {"multiple_of": size}
        case OneOf(listed):
            return {"one_of": [*sorted(listed)]}
        case Unchecked(within):
            return {"unchecked": json_of(within)}
        case Conflict(owners):
            return {"conflict": [*owners]}
    raise AssertionError(f"no capability has the value {value!r}")


WRITTEN = BeforeValidator(json_of)
"""Marks a field that takes an enumeration's member for the text that is its value."""
TEXT = BeforeValidator(str)
"""Marks a field that takes any object for its text."""
Written: TypeAlias = Annotated[JsonValue, WRITTEN]
"""A capability's value as JSON; a document is made from the value itself."""


def value_of(capability: str, written: JsonValue) -> object:
    """Read a plan's value that `json_of` wrote.

    Raises:
        ValueError: no plan holds such a value.
    """
    kind = CAPABILITIES.get(capability)
    if kind is None:
        raise ValueError(f"a plan has no {capability!r}")
    if written is None and kind.best == NO_LIMIT:
        return NO_LIMIT
    if isinstance(written, dict) and isinstance(kind.worst, Unchecked):
        match written:
            case {"conflict": [*owners]}:
                return Conflict(tuple(map(str, owners)))
            case {"unchecked": within} if isinstance(sizes := value_of(capability, within), Sizes):
                return Unchecked(sizes)
    try:
        read = Capabilities.model_validate_json(json.dumps({capability: written}))
        return read.stated()[capability]
    except (ValidationError, KeyError) as error:
        raise ValueError(f"{capability} cannot be {written!r} in a plan") from error
