"""The process that reads declarations, as its parent sees it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO

import backend_caps

# The package is imported from where this process has it, and nothing else is: with the folder
# left on the path, a module planted beside it could stand in for a dependency. The end is at
# once: plugins' exit handlers and threads would hold it up.
_BOOTSTRAP = """
import json, os, sys
work = json.load(sys.stdin)
sys.path.insert(0, sys.argv[1])
import backend_caps
del sys.path[0]
sys.path += work["path"]
from backend_caps.discovery.loading_child import main
main(work, int(sys.argv[2]))
os._exit(0)
"""
_CHUNK_BYTES = 1 << 16
_SHOWN_BYTES = 1 << 12
"""More than any report shows of what a plugin prints, which may be without end."""


class Child:
    """One process in a session of its own, that is killed with all it started.

    It reads the work list from standard input and answers on a pipe of its own. Both of its
    standard outputs go to one file. The files have no names, so nothing is left behind.
    """

    def __init__(self, work: bytes, *, executable: str) -> None:
        """Start it.

        Raises:
            OSError: the system does not let it start.
        """
        self._pending = bytearray()
        self._output = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._results, theirs = os.pipe()
        try:
            self._process = _started(work, self._output, theirs, executable)
        except OSError:
            os.close(self._results)
            self._output.close()
            raise
        finally:
            os.close(theirs)
        self.close = weakref.finalize(self, _end, self._process, self._results, self._output)
        """Kill it; done at the end of this process, too."""

    def line(self, deadline_s: float) -> bytes:
        """Wait for the next line of its answers; empty where there is no further one.

        Raises:
            TimeoutError: it did not come in time.
        """
        latest = time.monotonic() + deadline_s
        while b"\n" not in self._pending:
            chunk = self._chunk(latest - time.monotonic())
            if not chunk:
                return b""
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return bytes(line)

    def _chunk(self, timeout_s: float) -> bytes:
        with selectors.DefaultSelector() as selector:
            selector.register(self._results, selectors.EVENT_READ)
            if not selector.select(max(timeout_s, 0)):
                raise TimeoutError
        return os.read(self._results, _CHUNK_BYTES)

    def status(self) -> int | None:
        """Return its exit status, or minus the signal that ended it; None where it lives on."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=1)
        return None

    def num_printed_bytes(self) -> int:
        """Return how far its output has come."""
        return os.fstat(self._output.fileno()).st_size

    def printed(self, start: int, end: int) -> bytes:
        """Return what it printed between two places of its output, or how that begins."""
        # Its output's position is shared with this process: read without moving it.
        return os.pread(self._output.fileno(), min(end - start, _SHOWN_BYTES), start)


def _started(
    work: bytes, output: IO[bytes], results: int, executable: str
) -> subprocess.Popen[bytes]:
    root = os.path.dirname(os.path.dirname(backend_caps.__file__))  # noqa: PTH120 - see scan
    with TemporaryFile() as todo:
        todo.write(work)
        todo.seek(0)
        return subprocess.Popen(  # noqa: S603 - this very Python, with a program of ours
            [
                executable,
                *interpreter_flags(isolated=sys.flags.isolated),
                "-c",
                _BOOTSTRAP,
                root,
                f"{results}",
            ],
            stdin=todo,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(results,),
            start_new_session=True,
            env=os.environ | {"PYDANTIC_DISABLE_PLUGINS": "__all__"},
        )


def interpreter_flags(*, isolated: int) -> Sequence[str]:
    """Never the working directory on the path; as isolated as this process; no buffering."""
    return ("-I", "-u") if isolated else ("-P", "-u")


def _end(process: subprocess.Popen[bytes], results: int, output: IO[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.close(results)
    output.close()
