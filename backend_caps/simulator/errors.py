"""Errors of the simulated device, and the line of user code that they are reported at."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import ClassVar, NamedTuple

import torch

from backend_caps.errors import BackendCapsError, CodedError

_TORCH = Path(torch.__file__).parent
# Triton is installed beside torch, and need not be imported, or there.
_OWN_FOLDERS = (str(_TORCH), str(_TORCH.with_name("triton")), str(Path(__file__).parent))
_OWN_MODULES = ("contextlib.py", "functools.py")


class Site(NamedTuple):
    """A line of source."""

    file: str
    """The path as Python knows it."""
    line: int
    """The line, from 1."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@cache
def _is_own(code: CodeType) -> bool:
    """Return whether code is torch's, Triton's or the simulator's; every launch calls it."""
    file = code.co_filename
    return file.startswith((*_OWN_FOLDERS, "<")) or Path(file).name in _OWN_MODULES


def call_site() -> Site:
    """Return the line that called into torch or the simulator."""
    frame = sys._getframe(1)  # noqa: SLF001 - the traceback module takes 20 us for this
    while _is_own(frame.f_code) and frame.f_back is not None:
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno)


_MOST_NOTES = 3


class StarvationWarning(UserWarning):
    """The run has no stream with the number that its schedule starves, so it ran eagerly."""


@dataclass(eq=False, kw_only=True)
class SimDeviceError(BackendCapsError):
    """Deferred work failed when it ran, after its launch."""

    operator: str
    site: str
    reason: str
    races: tuple[str, ...] | None = None
    """Races among the launches so far; None without `check_races`."""

    def __post_init__(self) -> None:
        """Show the first races below the message."""
        for race in (self.races or ())[:_MOST_NOTES]:
            self.add_note(race)

    @property
    def message(self) -> str:
        """The operator, its launch site, torch's message, and where to look next."""
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


@dataclass(eq=False)
class SimulatorError(CodedError):
    """The simulated device cannot do what was requested, or a run has races."""

    codes: ClassVar[Mapping[str, str]] = {
        "capture": "the host did something that a capture cannot record",
        "dirty-run": "a run that was to be clean has races",
        "graph-state": "a graph's method was called in a state that does not allow it",
        "nested-simulation": "a simulation was started while another one runs",
        "schedule": "a word is no schedule",
        "unsupported-kernel": "a Triton kernel cannot run on the simulated device",
        "unsupported-operator": "an operator cannot run on the simulated device",
    }

    @staticmethod
    def capture(action: str, expected: str) -> SimulatorError:
        """Return the error of an action that a capture cannot record, with its line."""
        return SimulatorError(
            "capture",
            f"{action} at {call_site()} while a graph is captured; {expected}. Do it before the "
            f"capture, or on the device.",
        )

    @staticmethod
    def graph_state(action: str, held: str) -> SimulatorError:
        """Return the error of a graph's method that was called out of order."""
        return SimulatorError(
            "graph-state",
            f"{action} was called on a graph that holds {held}; capture_begin, capture_end and "
            f"then replay were expected. Capture into a fresh CUDAGraph, one at a time.",
        )
