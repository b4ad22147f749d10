"""What a caller of discovery can get wrong; what a plugin gets wrong is data."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.errors import BackendCapsError

LONGEST_DEADLINE_S = 86_400.0
"""A day; the system's own clocks for waiting do not take any number."""


@dataclass(eq=False, kw_only=True)
class StringInsteadOfListError(BackendCapsError):
    """An argument that takes several strings was given one."""

    argument: str
    value: str

    @property
    def message(self) -> str:
        """The argument, and how to write it."""
        return (
            f"{self.argument}={self.value!r} is one string; expected several. "
            f"Write {self.argument}=[{self.value!r}]."
        )


@dataclass(eq=False, kw_only=True)
class DeadlineError(BackendCapsError):
    """A deadline leaves no time at all, or has no end."""

    deadline_s: float

    @property
    def message(self) -> str:
        """The deadline, and what it can be."""
        return (
            f"deadline_s is {self.deadline_s:g}; expected more than 0 and at most "
            f"{LONGEST_DEADLINE_S:g}. Give it some seconds."
        )


@dataclass(eq=False, kw_only=True)
class RepeatedBackendError(BackendCapsError):
    """Two backends of a registry made by hand have one name."""

    name: str
    sources: tuple[str, ...]

    @property
    def message(self) -> str:
        """The name, and where the backends come from."""
        return (
            f"backend {self.name!r} is given {len(self.sources)} times: "
            f"{' and '.join(self.sources)}. Give each name once."
        )
