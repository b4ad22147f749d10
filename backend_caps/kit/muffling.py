"""What backends print, log and warn of while they are checked: each line kept once."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TextIO

_NUMBER = re.compile(r"\d+")


class Said(io.TextIOBase):
    """A stream that keeps each distinct line once; lines that differ in numbers alone are one."""

    def __init__(self) -> None:
        self._begun = ""
        self._first: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    @property
    def lines(self) -> Mapping[str, int]:
        """Each line as it was first said, and how often."""
        self._end_line()
        return {self._first[alike]: count for alike, count in self._counts.items()}

    def writable(self) -> bool:
        """Take text."""
        return True

    def write(self, text: str) -> int:
        """Take in a text, which may be a part of a line."""
        *ended, self._begun = (self._begun + text).split("\n")
        for line in ended:
            self._keep(line)
        return len(text)

    def warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG002 - the same
        line: str | None = None,  # noqa: ARG002 - the same
    ) -> None:
        """Take in a warning, on a line of its own."""
        self.write(f"{filename}:{lineno}: {category.__name__}: {message}\n")

    def _end_line(self) -> None:
        self._keep(self._begun)
        self._begun = ""

    def _keep(self, line: str) -> None:
        if line := line.strip():
            alike = _NUMBER.sub("0", line)  # a log's times and process numbers
            self._first.setdefault(alike, line)
            self._counts[alike] = self._counts.get(alike, 0) + 1


@contextmanager
def muffled() -> Iterator[Said]:
    """Keep what Python code writes to standard output and error, logs or warns of in a block.

    Loggers that write to standard error already are led here too. What a process of its own, or
    code that is no Python, writes to the terminal is not caught.
    """
    said = Said()
    with ExitStack() as stack:
        for handler in _handlers():
            if handler.stream in {sys.stderr, sys.stdout}:
                stack.callback(handler.setStream, handler.stream)
                handler.setStream(said)
        stack.enter_context(redirect_stdout(said))
        stack.enter_context(redirect_stderr(said))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")  # where warnings are errors, they are no broken claim
        warnings.showwarning = said.warn
        yield said


def _handlers() -> Iterator[logging.StreamHandler[io.TextIOBase]]:
    """List the handlers of all loggers that write to a stream."""
    root = logging.getLogger()
    named = (each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger))
    for logger in (root, *named):
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:
                yield handler
