"""Where in the user's code something happened: the first frame outside torch and the simulator."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch

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
