"""What a command refuses before or after it runs anything."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from backend_caps.errors import CodedError


class CommandError(CodedError):
    """A command cannot do what its command line asks, or cannot write what it is to write."""

    codes: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "file-not-written": "`trace`: a file that was named cannot be written",
            "no-backend-named": "`generate`: no flag names the attention backend of a phase",
            "no-output": "standard output takes nothing: it is closed, or its disk is full",
            "plugin-folder": "`new-plugin`: the folder is not empty, or cannot be written",
            "plugin-name-misspelled": "`new-plugin`: no package can have the name",
            "plugin-name-taken": "`new-plugin`: something has the name, or it has a meaning",
        }
    )

    @property
    def is_usage(self) -> bool:
        """Whether the exit status is that of a wrong command line."""
        return self.code == "no-output" or self.code.startswith("plugin-")
