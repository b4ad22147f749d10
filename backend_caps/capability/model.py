"""The base of every model that crosses a boundary."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict

_Value = TypeVar("_Value")


class FrozenMapping(Mapping[str, _Value]):
    """A mapping in the order of its keys that nobody changes, and that has a hash."""

    def __init__(self, values: Mapping[str, _Value]) -> None:
        self._values = dict(sorted(values.items()))

    def __getitem__(self, key: str) -> _Value:
        """Return the value of a key."""
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        """List the keys, sorted."""
        return iter(self._values)

    def __len__(self) -> int:
        """Count the keys."""
        return len(self._values)

    def __hash__(self) -> int:
        """Be the same for equal mappings."""
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        """Show the mapping."""
        return repr(self._values)


class FrozenModel(BaseModel):
    """Data that is checked when it is made, and then stays as it is.

    The docstrings below fields are for readers and for the generated reference; having pydantic
    parse them out of the source would cost every process a third of its import time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits of a SHA-256 of all that it says, as JSON."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Copy, validating what `update` brings; pydantic's own copy would not."""
        del deep  # what is frozen may be shared
        stated = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).model_validate({**stated, **(update or {})})
