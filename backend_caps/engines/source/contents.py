"""The files that are read so far, within limits; what is wrong with one is a problem."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import IO

from backend_caps.capability.status import Problem
from backend_caps.engines import problems

LARGEST_BYTES = 5 * 10**6
"""The largest file that is read. The largest of SGLang and vLLM has under 1 MB."""
LARGEST_TOTAL_BYTES = 250 * 10**6
"""As much is read of one source. SGLang 0.5.23 has 36 MB."""
_MOST_FILES = 2**16
"""More than most files have: asking for the limit would set its memory aside for each."""
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,  # of an encrypted file, or of a method of compression that is not known
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
"""What opening or unpacking a damaged file raises."""


def words_of(error: Exception) -> str:
    """Write an error without the machine's own paths in it."""
    known = error.strerror if isinstance(error, OSError) else None
    return known or str(error) or type(error).__name__


@dataclass(slots=True)
class Contents:
    """What is read so far, file by file."""

    files: dict[str, bytes] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    left: int = LARGEST_TOTAL_BYTES
    """As many bytes may still be read."""

    def add(self, path: str, opened: Callable[[], AbstractContextManager[IO[bytes]]]) -> None:
        """Read a file of Python, its line ends as the parser counts them."""
        text = self.read(path, opened)
        if text is not None:
            has_returns = b"\r" in text
            self.files[path] = (
                text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if has_returns else text
            )

    def read(
        self, path: str, opened: Callable[[], AbstractContextManager[IO[bytes]]]
    ) -> bytes | None:
        """Read a file, and never more than the limit of it; None, and a problem, if it cannot."""
        limit = min(LARGEST_BYTES, self.left)
        try:
            with opened() as file:
                text = file.read(_MOST_FILES)
                if len(text) == _MOST_FILES:
                    text += file.read(max(limit + 1 - _MOST_FILES, 0))
        except DAMAGE as error:
            self.problems.append(problems.unreadable(path, words_of(error)))
            return None
        if len(text) > limit:
            self.problems.append(problems.too_large(path, limit))
            return None
        self.left -= len(text)
        return text
