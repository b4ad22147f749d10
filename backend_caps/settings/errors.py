"""What a user can get wrong about settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backend_caps.errors import BackendCapsError


@dataclass(eq=False, kw_only=True)
class SettingsFileError(BackendCapsError):
    """A file of settings is not there, or holds no mapping."""

    path: str
    cause: str

    @property
    def message(self) -> str:
        """The file, what is wrong with it, and what it is to be."""
        return (
            f"settings file {self.path!r} cannot be read: {self.cause}. Expected a YAML mapping "
            "of settings, such as policy: strict. Correct the file, or --config or "
            "BACKEND_CAPS_CONFIG, which name it."
        )


@dataclass(eq=False, kw_only=True)
class UnknownSettingError(BackendCapsError):
    """A setting is given that there is none of."""

    place: str
    name: str
    known: tuple[str, ...]
    meant: str | None = None

    @property
    def message(self) -> str:
        """Where it stands, its name, and the nearest one or all that there are."""
        remedy = f"Did you mean {self.meant!r}?" if self.meant else "Take it out."
        return (
            f"{self.place}: there is no setting {self.name!r}; expected one of: "
            f"{', '.join(self.known)}. {remedy}"
        )


@dataclass(eq=False, kw_only=True)
class SettingValueError(BackendCapsError):
    """A setting has a value that it cannot have."""

    place: str
    name: str
    value: str
    expected: str

    @property
    def message(self) -> str:
        """Where it stands, its value, and what it takes."""
        return (
            f"{self.place}: {self.name} is {self.value}; expected {self.expected}. "
            "Correct the value."
        )


@dataclass(eq=False, kw_only=True)
class ServerSettingError(BackendCapsError):
    """A server flag in a file of settings is refused."""

    place: str
    fault: BackendCapsError

    @property
    def message(self) -> str:
        """Where it stands, and what is said of such a flag anywhere."""
        return f"{self.place}: {self.fault}"


@dataclass(eq=False, kw_only=True)
class RepeatedSettingError(BackendCapsError):
    """A file gives one key twice; which of the two counts would be a matter of luck."""

    place: str
    name: str
    first_line: int

    @property
    def message(self) -> str:
        """Where it stands again, and where it stood first."""
        return (
            f"{self.place}: {self.name!r} is given again, after line {self.first_line}; expected "
            "each key once. Keep one of them."
        )


SETTINGS_ERRORS = (
    RepeatedSettingError,
    ServerSettingError,
    SettingsFileError,
    SettingValueError,
    UnknownSettingError,
)
"""All of them."""


def in_order(faults: Iterable[BackendCapsError]) -> list[BackendCapsError]:
    """Sort faults by where they stand, lines of a file as numbers."""
    return sorted(faults, key=_order)


def _order(fault: BackendCapsError) -> tuple[str, int]:
    match fault:
        case (
            UnknownSettingError(place=place)
            | SettingValueError(place=place)
            | ServerSettingError(place=place)
            | RepeatedSettingError(place=place)
        ):
            file, _, line = place.rpartition(":")
            return (file, int(line)) if line.isdecimal() else (place, 0)
    return "", 0
