"""Run checks in a forked process; fork another one when native code ends it.

A backend's native code may end the process that runs it. So the checks run in a child process,
which logs each case before the case runs. When the child is ended, the parent forks another one,
which continues from the log. The first fork happens before torch is loaded, and the parent never
loads it: a CUDA context does not survive a fork.
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
_USER_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which users end a process; any other signal is a crash."""
_OVERDUE = "Timeout ("
"""The first word of faulthandler's trace of a process that it ends at a deadline."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The end of a process that Python itself did not end."""

    status: int
    """The exit status, or minus the number of the signal."""
    trace: str
    """The trace that faulthandler wrote; empty where it had no time to."""
    at_s: float
    """When the process ended, by `time.monotonic`."""

    @property
    def is_overdue(self) -> bool:
        """Whether a deadline ended the process."""
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
        """List file and line of the Python frames at the crash, innermost first."""
        return [(file, int(line)) for file, line in _FRAME.findall(self.trace)]


class Log:
    """Events of the checking processes, in unnamed files that forks share."""

    def __init__(self) -> None:
        # Descriptors, since they are open to the very end of the process: of a file object that is
        # not closed Python warns there.
        self._events, self._trace, self._over = _unnamed_file(), _unnamed_file(), _unnamed_file()

    @property
    def num_bytes(self) -> int:
        """The size of all events; it grows with each process that gets further."""
        return os.fstat(self._events).st_size

    @property
    def is_over(self) -> bool:
        """Whether Python ended the process, by an exit or by an exception."""
        return os.fstat(self._over).st_size > 0

    def write(self, event: bytes) -> None:
        """Append an event, as a pickle."""
        os.write(self._events, event)

    def read(self) -> bytes:
        """Return all events, one pickle behind the other."""
        # `pread` leaves the offset alone, which the processes share.
        return os.pread(self._events, self.num_bytes, 0)

    def end(self) -> None:
        """Record that Python ends this process."""
        os.write(self._over, b".")

    def crash(self, status: int) -> Crash:
        """Append the crash of a process, and return it."""
        size = os.fstat(self._trace).st_size
        trace = os.pread(self._trace, size, 0).decode(errors="replace")
        crash = Crash(status=status, trace=trace, at_s=time.monotonic())
        self.write(pickle.dumps(crash))
        return crash

    def close(self) -> None:
        """Close its files."""
        for file in (self._events, self._trace, self._over):
            os.close(file)

    def watch(self) -> None:
        """Let faulthandler write its trace into this log when a signal ends the process."""
        os.ftruncate(self._trace, 0)
        os.lseek(self._trace, 0, os.SEEK_SET)
        faulthandler.enable(self._trace, all_threads=False)

    def end_process_after(self, seconds: float) -> None:
        """End this process after a deadline, unless `keep_process` is called before.

        A C thread of faulthandler does it: it needs no GIL, which native code may hold.
        """
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._trace)

    def keep_process(self) -> None:
        """Cancel the deadline."""
        faulthandler.cancel_dump_traceback_later()


def _unnamed_file() -> int:
    """Open a file that has no name, and return its descriptor."""
    with TemporaryFile() as file:
        return os.dup(file.fileno())


def watched() -> Log | None:
    """Fork a process for the checks, again after each crash; return in the child.

    Returns:
        The log with the events of earlier processes; None on a system without `fork`, where this
        very process continues.
    """
    if sys.platform == "win32":
        return None
    log = Log()
    while True:
        reached = log.num_bytes
        pid = _fork(log)
        if pid is None:
            return log
        status = _wait(pid)
        if log.is_over or -status in _USER_SIGNALS:
            _end_likewise(status)
        # Without a new event the next process would crash at the same place, and so for ever.
        is_further = log.num_bytes > reached
        crash = log.crash(status)
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K\x1b[?25h")  # clears the progress line, shows the cursor
        if not is_further:
            frames = crash.trace.partition("\n\nExtension modules")[0]
            sys.stderr.write(f"error: the backend {crash}, before a case ran.\n{frames}\n")
            sys.exit(_NOT_RUN)
        sys.stderr.write(f"warning: the backend {crash}; a new process goes on with what is left\n")


def _fork(log: Log) -> int | None:
    """Fork a child that ends with this process; return its pid, and None in the child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reader)  # the writer stays open until this process ends
        return pid
    os.close(writer)
    # A pipe, as only Linux can signal a child that its parent ended (PR_SET_PDEATHSIG).
    _thread.start_new_thread(_end_with, (reader,))
    log.watch()
    return None


def _end_with(pipe: int) -> None:
    """End this process when the other end of a pipe closes."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait(pid: int) -> int:
    """Wait for a child, and forward signals to it; return its status, or minus its signal."""

    def forward(number: int, _frame: FrameType | None) -> None:
        os.kill(pid, number)

    before = {number: signal.signal(number, forward) for number in _USER_SIGNALS}
    _, status = os.waitpid(pid, 0)
    for number, handler in before.items():
        signal.signal(number, handler)
    return os.waitstatus_to_exitcode(status)


def _end_likewise(status: int) -> NoReturn:
    """End this process as its child ended: by the same signal or status."""
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
