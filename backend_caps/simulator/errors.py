"""What can go wrong on the simulated device, and the line of user code that it is reported at."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch

from backend_caps.errors import BackendCapsError

_OWN_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_OWN_MODULES = ("contextlib.py", "functools.py")


class Site(NamedTuple):
    """A line of source."""

    file: str
    """The path as Python knows it."""
    line: int
    """The line, from 1."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class _Own(dict[CodeType, bool]):
    """Whether code is torch's or the simulator's; asked at every launch, so kept by code object."""

    def __missing__(self, code: CodeType) -> bool:
        file = code.co_filename
        own = file.startswith((*_OWN_FOLDERS, "<")) or Path(file).name in _OWN_MODULES
        self[code] = own
        return own


_is_own = _Own()


def call_site() -> Site:
    """Return the line that called into torch or the simulator."""
    frame = sys._getframe(1)  # noqa: SLF001 - the traceback module takes 20 us for this
    while _is_own[frame.f_code] and frame.f_back is not None:
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


_MOST_NOTES = 3


class StarvationWarning(UserWarning):
    """A run tried less than its schedule says: it has no stream of the number that starves."""


@dataclass(eq=False, kw_only=True)
class SimDeviceError(BackendCapsError):
    """Deferred work failed when it ran, which is later than it was launched."""

    operator: str
    site: str
    reason: str
    races: tuple[str, ...] | None = None
    """The races of what was launched until then; None without `check_races`."""

    def __post_init__(self) -> None:
        """Show the first races below the message."""
        for race in (self.races or ())[:_MOST_NOTES]:
            self.add_note(race)

    @property
    def message(self) -> str:
        """The operator, where it was launched, torch's own words, and where to look next."""
        return (
            f"operator {self.operator!r}, launched at {self.site}, failed when it ran: "
            f"{self.reason}. Values that no missing wait or early free had poisoned were expected; "
            f"{self._advice}."
        )

    @property
    def _advice(self) -> str:
        if self.races is None:
            return "replay the schedule with check_races=True to find which"
        if not self.races:
            return (
                "no race was found until then: look for memory that is read before anything "
                "writes it, or for an index that is out of range by itself"
            )
        return f"order the accesses of the races found until then ({len(self.races)}) first"


@dataclass(eq=False, kw_only=True)
class ScheduleError(BackendCapsError):
    """A word that is no schedule."""

    text: str

    @property
    def message(self) -> str:
        """The word, and the form of a schedule."""
        return (
            f"{self.text!r} is no schedule; expected eager, lazy, starve:<stream> or "
            f"random:<seed>. Copy the word that the failing run printed."
        )


@dataclass(eq=False, kw_only=True)
class CaptureError(BackendCapsError):
    """The host did something that a capture cannot record."""

    action: str
    site: str
    expected: str

    @property
    def message(self) -> str:
        """The action, its line, and what a capture records."""
        return (
            f"{self.action} at {self.site} while a graph is captured; {self.expected}. "
            f"Do it before the capture, or on the device."
        )


@dataclass(eq=False, kw_only=True)
class UnsupportedOperatorError(BackendCapsError):
    """An operator that the simulated device cannot run."""

    operator: str
    site: str
    reason: str

    @property
    def message(self) -> str:
        """The operator, where it was called, and why it is refused."""
        return (
            f"operator {self.operator!r}, called at {self.site}, cannot run on the simulated "
            f"device: {self.reason}."
        )


@dataclass(eq=False, kw_only=True)
class NestedSimulationError(BackendCapsError):
    """A simulation was started while another one runs."""

    running: str
    asked: str

    @property
    def message(self) -> str:
        """Both schedules, and the way out."""
        return (
            f"simulate({self.asked}) was entered while simulate({self.running}) runs; one at a "
            f"time was expected, there being one device. Leave the first one before."
        )


@dataclass(eq=False, kw_only=True)
class DirtyRunError(BackendCapsError):
    """A run that was to be clean has findings."""

    schedule: str
    findings: Sequence[str]

    @property
    def message(self) -> str:
        """The schedule that replays it, and what was found."""
        faults = "1 fault" if len(self.findings) == 1 else f"{len(self.findings)} faults"
        return (
            f"schedule {self.schedule} found {faults}, none was expected: "
            f"{'; '.join(self.findings)}. Replay it by Schedule.parse({self.schedule!r})."
        )


@dataclass(eq=False, kw_only=True)
class GraphStateError(BackendCapsError):
    """A graph's method was called in a state that does not allow it."""

    action: str
    held: str

    @property
    def message(self) -> str:
        """The method, what the graph holds, and the order of calls."""
        return (
            f"{self.action} was called on a graph that holds {self.held}; capture_begin, "
            f"capture_end and then replay were expected. Capture into a fresh CUDAGraph, one at "
            f"a time."
        )
