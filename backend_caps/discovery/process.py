"""The parent's side of the process that reads declarations, and the paths that both search."""

# ruff: noqa: PTH100, PTH109, PTH116 - importing pathlib costs a fifth of a scan

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
from dataclasses import asdict, dataclass
from functools import cache
from os import PathLike
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Literal, TypedDict

import backend_caps

if TYPE_CHECKING:
    from pydantic import TypeAdapter

# The child imports this package from the parent's folder, and then drops that folder from the path:
# a module planted beside the package would shadow a dependency. `loading_child` is slow to import,
# so it is loaded before the child waits for its work.
_BOOTSTRAP = """
import gc, json, sys
gc.disable()
root, path, results = sys.argv[1:]
sys.path.insert(0, root)
import backend_caps
del sys.path[0]
sys.path += json.loads(path)
from backend_caps.discovery.loading_child import main
gc.enable()
main(json.load(sys.stdin), int(results))
"""
_CHUNK_BYTES = 1 << 16
_TOO_MANY_BYTES = 1 << 62
"""More bytes than any file has: a larger count is forged."""
_SHOWN_BYTES = 1 << 12
"""More than a report shows of a plugin's output, which may be endless."""
Fault = Literal[
    "",
    "crashes",
    "exits",
    "hangs",
    "missing-attribute",
    "missing-module",
    "raises",
    "schema",
    "wrong-type",
]
"""The code of the problem that an entry met; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where to look for metadata, and the `sys.path` to import from."""

    searched: tuple[str, ...]
    imports: tuple[str, ...]
    named: tuple[str, ...] = ()
    """Folders that the caller named; a missing one is a problem."""
    unsearched: str | None = None
    """The working directory that Python put on the path by itself."""

    @classmethod
    def of_process(cls, working_directory: str | None = None) -> Search:
        """Search `sys.path`, without the working directory that `-m` and `-c` put first on it.

        Metadata planted there would hijack a backend's name. `working_directory` names it
        where it has been taken off `sys.path` already.
        """
        path = _absolute(sys.path)
        first = working_directory or working_directory_of_process()
        if path[:1] == (first,) and not sys.flags.safe_path:
            working_directory, path = first, path[1:]
        return cls(searched=path, imports=path, unsearched=working_directory)

    @classmethod
    def of_folders(cls, folders: Sequence[str | PathLike[str]]) -> Search:
        """Search these folders alone; import from them first, then from `sys.path`."""
        named = _absolute([os.fspath(folder) for folder in folders])
        return cls(searched=named, imports=(*named, *cls.of_process().imports), named=named)


def identity(path: str) -> tuple[int, int] | None:
    """Return device and inode, equal for all paths of a file; None if missing."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


def _absolute(path: Sequence[str]) -> tuple[str, ...]:
    """Make every entry absolute; the empty one is the working directory."""
    with suppress(FileNotFoundError):  # the working directory may be deleted
        return tuple(os.path.abspath(entry) for entry in path)
    return tuple(entry for entry in path if os.path.isabs(entry))  # noqa: PTH117 - as above


def working_directory_of_process() -> str | None:
    """Return the working directory; None where it has been deleted."""
    with suppress(FileNotFoundError):
        return os.getcwd()
    return None


class Work(TypedDict):
    """The entries to read."""

    path: Sequence[str]
    """The `sys.path` to import from."""
    entries: Sequence[Sequence[str]]
    """Group and `module:ATTRIBUTE` of each."""
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A line on the pipe: the child has begun an entry, or read it."""

    is_done: bool = True
    num_printed_bytes: int = 0
    """The size of the output at that moment."""
    documents: Sequence[str] = ()
    """The declaration as JSON, or each of the rules."""
    declared_at: str | None = None
    """`file:line` of the object, where it was reached."""
    fault: Fault = ""
    detail: str = ""
    """The detail that the problem's message names."""
    loaded_torch: bool = False
    is_last: bool = False
    """That process sends no further answer."""

    def to_line(self) -> bytes:
        """Write it as a line; lone surrogates, which UTF-8 lacks, are escaped."""
        texts = {
            name: value.encode("utf-8", "backslashreplace").decode()
            for name, value in asdict(self).items()
            if isinstance(value, str)
        }
        return json.dumps({**asdict(self), **texts}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Answer:
        """Read it from a line.

        Raises:
            ValueError: the line is no answer: a plugin wrote into the pipe.
        """
        answer = _adapter().validate_json(line, strict=True)
        if not 0 <= answer.num_printed_bytes < _TOO_MANY_BYTES:
            raise ValueError(line)
        return answer


@cache  # building it takes 0.5 ms, and each entry has two answers
def _adapter() -> TypeAdapter[Answer]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - slow, and loaded by the time of an answer

    return TypeAdapter(Answer)


class Child:
    """A child process in its own session, so that it is killed with all processes it started.

    It starts before its work is known, waits for `give`, and answers on a separate pipe. Standard
    output and error go to one unnamed temporary file, which vanishes with the last descriptor.
    """

    def __init__(self, path: Sequence[str], *, executable: str) -> None:
        """Start the child, which imports from `path`.

        Raises:
            OSError: the system cannot start it.
        """
        self._pending = bytearray()
        root = os.path.dirname(os.path.dirname(backend_caps.__file__))  # noqa: PTH120 - see scan
        with ExitStack() as started:
            self._output = started.enter_context(TemporaryFile())
            self._results, results = os.pipe()
            started.callback(os.close, self._results)
            try:
                self._process = subprocess.Popen(  # noqa: S603 - this very Python, our program
                    [
                        executable,
                        *interpreter_flags(isolated=sys.flags.isolated),
                        *("-c", _BOOTSTRAP, root, json.dumps(path), str(results)),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(results,),
                    start_new_session=True,
                    env=os.environ | {"PYDANTIC_DISABLE_PLUGINS": "__all__"},
                )
            finally:
                os.close(results)
            self.close = weakref.finalize(self, _end, self._process, started.pop_all())
            """Kill the child; also runs when this process exits."""

    def give(self, work: Work) -> None:
        """Send the work, once. A child that has ended is noticed when answers are read."""
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(OSError):
            self._process.stdin.write(json.dumps(work).encode())
        with suppress(OSError):
            self._process.stdin.close()

    def line(self, deadline_s: float) -> bytes:
        """Wait for the next line of the answers; empty where there is no further one.

        Raises:
            TimeoutError: it did not come in time.
        """
        latest = time.monotonic() + deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._results, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(latest - time.monotonic(), 0)):
                    raise TimeoutError
                chunk = os.read(self._results, _CHUNK_BYTES)
                if not chunk:
                    return b""
                self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        return bytes(line)

    def status(self) -> int | None:
        """Return the exit status, or minus the signal's number; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=1)
        return None

    def num_printed_bytes(self) -> int:
        """Return the size of the output."""
        return os.fstat(self._output.fileno()).st_size

    def printed(self, start: int, end: int) -> bytes:
        """Return the output between two offsets, or the beginning of that."""
        # Both processes share one file offset, at which the child writes: pread does not move it.
        return os.pread(self._output.fileno(), min(end - start, _SHOWN_BYTES), start)


def start_early(search: Search | None = None) -> tuple[Search, Child | None]:
    """Start the child before the scan, so that it imports its modules meanwhile.

    Returns:
        The search, of `sys.path` unless given; and the child, or None where it did not start: the
        next attempt reports the reason.
    """
    search = search or Search.of_process()
    with suppress(OSError):
        return search, Child(search.imports, executable=sys.executable)
    return search, None


def interpreter_flags(*, isolated: int) -> Sequence[str]:
    """Return flags: no working directory on the path, isolated if so, unbuffered."""
    return ("-I", "-u") if isolated else ("-P", "-u")


def _end(process: subprocess.Popen[bytes], resources: ExitStack) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None, "the child reads its work from a pipe"
    with suppress(OSError):
        process.stdin.close()
    resources.close()
