"""The process that reads declarations, as its parent sees it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

import backend_caps
from backend_caps.discovery.search import Search

# The package is imported from where this process has it, and nothing else is: with the folder
# left on the path, a module planted beside it could stand in for a dependency. What is slow is
# imported while the parent still looks for what there is to read.
_BOOTSTRAP = """
import gc, json, os, sys
gc.disable()
root, path, results, go = sys.argv[1:]
sys.path.insert(0, root)
import backend_caps
del sys.path[0]
sys.path += json.loads(path)
from backend_caps.discovery.loading_child import main
gc.enable()
os.read(int(go), 1)
os.close(int(go))
sys.stdin.seek(0)
main(json.load(sys.stdin), int(results))
"""
_CHUNK_BYTES = 1 << 16
_SHOWN_BYTES = 1 << 12
"""More than any report shows of what a plugin prints, which may be without end."""


class Child:
    """One process in a session of its own, that is killed with all it started.

    It is started before its work is known, and waits for it. It answers on a pipe of its own.
    Both of its standard outputs go to one file. The files have no names, so nothing is left
    behind.
    """

    def __init__(self, path: Sequence[str], *, executable: str) -> None:
        """Start it; it will import from `path`.

        Raises:
            OSError: the system does not let it start.
        """
        self._pending = bytearray()
        self._resources = ExitStack()
        try:
            self._open(path, executable)
        except OSError:
            self._resources.close()
            raise
        self.close = weakref.finalize(self, _end, self._process, self._resources)
        """Kill it; done at the end of this process, too."""

    def _open(self, path: Sequence[str], executable: str) -> None:
        self._work = self._resources.enter_context(TemporaryFile())  # noqa: SIM115
        self._output = self._resources.enter_context(TemporaryFile())  # noqa: SIM115
        self._results, results = os.pipe()
        self._resources.callback(os.close, self._results)
        go, signal_go = os.pipe()
        self._go = self._resources.enter_context(os.fdopen(signal_go, "wb", 0))
        try:
            files = _Files(work=self._work, output=self._output, results=results, go=go)
            self._process = _started(path, files, executable)
        finally:
            os.close(results)
            os.close(go)

    def give(self, work: bytes) -> None:
        """Give it its work, once."""
        self._work.write(work)
        self._work.flush()
        self._go.close()

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


def start_early(search: Search | None = None) -> tuple[Search, Child | None]:
    """Start a process before it is known what there is to read: it has imports to do meanwhile.

    Returns:
        Where to look, `sys.path` unless given; and the process, or None where it did not start:
        who tries again will tell why.
    """
    search = search or Search.of_process()
    with suppress(OSError):
        return search, Child(search.imports, executable=sys.executable)
    return search, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What the process is given of its parent's files."""

    work: IO[bytes]
    output: IO[bytes]
    results: int
    go: int
    """At its end when the work is there."""


def _started(path: Sequence[str], files: _Files, executable: str) -> subprocess.Popen[bytes]:
    root = os.path.dirname(os.path.dirname(backend_caps.__file__))  # noqa: PTH120 - see scan
    flags = interpreter_flags(isolated=sys.flags.isolated)
    arguments = (root, json.dumps(path), str(files.results), str(files.go))
    return subprocess.Popen(  # noqa: S603 - this very Python, with a program of ours
        [executable, *flags, "-c", _BOOTSTRAP, *arguments],
        stdin=files.work,
        stdout=files.output,
        stderr=subprocess.STDOUT,
        pass_fds=(files.results, files.go),
        start_new_session=True,
        env=os.environ | {"PYDANTIC_DISABLE_PLUGINS": "__all__"},
    )


def interpreter_flags(*, isolated: int) -> Sequence[str]:
    """Never the working directory on the path; as isolated as this process; no buffering."""
    return ("-I", "-u") if isolated else ("-P", "-u")


def _end(process: subprocess.Popen[bytes], resources: ExitStack) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    resources.close()
