"""What a command refuses before or after it runs anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from backend_caps.errors import CodedError


class CommandError(CodedError):
    """A command cannot do what it was asked."""

    codes: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "no-backend-named": "`generate`: no flag names the attention backend of a phase",
            "file-not-written": "`trace`: a file that was named cannot be written",
        }
    )
