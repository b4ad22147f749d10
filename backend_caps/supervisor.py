"""A process that checks, and one that waits for it and outlives it.

A backend's native code may end the process that runs it. So that is a process of its own: it leaves
what it does in a log before it does it, and where it is ended, a new one goes on from there. The
one that waits is forked before anything is loaded, and loads nothing.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import pickle
import re
import signal
import sys
import time
from dataclasses import dataclass
from tempfile import TemporaryFile
from types import FrameType
from typing import NoReturn

_NOT_RUN = 2
"""The exit status where nothing could be checked."""
_ASKED_FOR = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that users end a process by; others are its own crash."""
_OVERDUE = "Timeout ("
"""How faulthandler begins what it writes of a process that it ends."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How a process was ended, by none of Python's ways."""

    status: int
    """Its exit status, or minus the signal."""
    trace: str
    """What faulthandler wrote of it; empty where it had no time to."""
    at_s: float
    """When, by the clock that only goes on."""

    @property
    def is_overdue(self) -> bool:
        """Whether it was ended from outside, because what it ran took too long."""
        return self.trace.startswith(_OVERDUE)

    def __str__(self) -> str:
        if self.is_overdue:
            return "did not end, and its process was ended"
        if self.status >= 0:
            return f"ended the process with exit status {self.status}"
        number = signal.Signals(-self.status)
        return f"ended the process by {number.name} ({signal.strsignal(number)})"

    @property
    def places(self) -> list[tuple[str, int]]:
        """List file and line of what Python ran then, the innermost first."""
        return [(file, int(line)) for file, line in _FRAME.findall(self.trace)]


class Log:
    """What processes that check leave for the next one, in files without names."""

    def __init__(self) -> None:
        self._events = TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as the process
        self._trace = TemporaryFile(buffering=0)  # noqa: SIM115 - the same
        self._over = TemporaryFile(buffering=0)  # noqa: SIM115 - the same

    @property
    def num_bytes(self) -> int:
        """How much there is: more, where a process came further."""
        return os.fstat(self._events.fileno()).st_size

    @property
    def is_over(self) -> bool:
        """Whether Python ended the process, in whatever way."""
        return os.fstat(self._over.fileno()).st_size > 0

    def write(self, event: bytes) -> None:
        """Add what happens, or is about to; a pickle."""
        self._events.write(event)

    def read(self) -> bytes:
        """Return all that happened, pickle after pickle."""
        return os.pread(self._events.fileno(), self.num_bytes, 0)

    def end(self) -> None:
        """Write down that Python ends this process."""
        self._over.write(b".")

    def crash(self, status: int) -> Crash:
        """Add that a process was ended; return how."""
        size = os.fstat(self._trace.fileno()).st_size
        trace = os.pread(self._trace.fileno(), size, 0).decode(errors="replace")
        crash = Crash(status=status, trace=trace, at_s=time.monotonic())
        self.write(pickle.dumps(crash))
        return crash

    def close(self) -> None:
        """Close its files."""
        for file in (self._events, self._trace, self._over):
            file.close()

    def watch(self) -> None:
        """Have faulthandler write here what this process does when a signal ends it."""
        os.ftruncate(self._trace.fileno(), 0)
        self._trace.seek(0)
        faulthandler.enable(self._trace, all_threads=False)

    def end_process_after(self, seconds: float) -> None:
        """End this process from outside, unless it is kept in time.

        A thread without the interpreter does so: native code may keep that for itself.
        """
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._trace)

    def keep_process(self) -> None:
        """Let this process live: what was to end in time has ended."""
        faulthandler.cancel_dump_traceback_later()


def watched() -> Log | None:
    """Go on in a process of its own, once more where native code ends it; return in each.

    Returns:
        What the processes before left; None where a system has no forks, and this one goes on.
    """
    if sys.platform == "win32":
        return None
    log = Log()
    while True:
        reached = log.num_bytes
        process = _forked(log)
        if process is None:
            return log
        status = _waited(process)
        if log.is_over or -status in _ASKED_FOR:
            _end_likewise(status)
        is_further = log.num_bytes > reached
        crash = log.crash(status)
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K\x1b[?25h")  # clears the progress line, shows the cursor
        if not is_further:
            told = crash.trace.partition("\n\nExtension modules")[0]
            sys.stderr.write(f"error: the backend {crash}, before a case ran.\n{told}\n")
            sys.exit(_NOT_RUN)
        sys.stderr.write(f"warning: the backend {crash}; a new process goes on with what is left\n")


def _forked(log: Log) -> int | None:
    """Fork a process that ends with this one; return its number, and in it None."""
    ends, holds = os.pipe()
    process = os.fork()
    if process:
        os.close(ends)  # the other end is held until this process ends
        return process
    os.close(holds)
    _thread.start_new_thread(_end_with, (ends,))
    log.watch()
    return None


def _end_with(pipe: int) -> None:
    """End this process when the other end of a pipe closes."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _waited(process: int) -> int:
    """Wait for a process, and forward signals to it; return its status, or minus its signal."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(process, number)

    before = {number: signal.signal(number, pass_on) for number in _ASKED_FOR}
    _, status = os.waitpid(process, 0)
    for number, handler in before.items():
        signal.signal(number, handler)
    return os.waitstatus_to_exitcode(status)


def _end_likewise(status: int) -> NoReturn:
    """End as another process did."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
