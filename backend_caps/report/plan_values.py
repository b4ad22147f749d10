"""The values of a plan, read back from the JSON of its document."""

from __future__ import annotations

import json

from pydantic import JsonValue, ValidationError

from backend_caps.capability.sizes import Conflict, Sizes, Unchecked
from backend_caps.capability.vocabulary import CAPABILITIES, NO_LIMIT, Capabilities


def value_of(capability: str, written: JsonValue) -> object:
    """Read a value that `json_of` wrote.

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
    return _declared(capability, written)


def _declared(capability: str, written: JsonValue) -> object:
    try:
        read = Capabilities.model_validate_json(json.dumps({capability: written}))
        return read.stated()[capability]
    except (ValidationError, KeyError) as error:
        raise ValueError(f"{capability} cannot be {written!r} in a plan") from error
