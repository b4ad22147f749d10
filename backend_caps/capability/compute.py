"""CUDA compute capabilities: windows of (major, minor)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field, StrictInt

Version = tuple[Annotated[StrictInt, Field(ge=0)], Annotated[StrictInt, Field(ge=0)]]


@dataclass(frozen=True, slots=True)
class ComputeRange:
    """A window of compute capabilities: from `at_least`, up to but without `below`."""

    __pydantic_config__ = ConfigDict(extra="forbid", revalidate_instances="always")

    at_least: Version
    """The first (major, minor) in it."""
    below: Version | None = None
    """The first (major, minor) above it; None where it is open."""

    def __contains__(self, version: tuple[int, int]) -> bool:
        return self.at_least <= version and (self.below is None or version < self.below)

    def __str__(self) -> str:
        start = f">= {_dotted(self.at_least)}"
        return start if self.below is None else f"{start} and < {_dotted(self.below)}"


ComputeCapabilities = Annotated[Sequence[ComputeRange], Field(min_length=1), AfterValidator(tuple)]


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
