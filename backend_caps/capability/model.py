"""The base of every model that crosses a boundary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Self

from pydantic import BaseModel, ConfigDict


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
