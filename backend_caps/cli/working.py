"""What a command says while it takes long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

TORCH = "loading torch"
"""What takes most commands that run anything a second or two."""


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Say on standard error what goes on within the block, where it takes long to a person there.

    Nothing may be printed meanwhile, but for what is done in a process of its own.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from backend_caps.report.progress import spinning  # noqa: PLC0415 - rich, for terminals alone

    with spinning(doing):
        yield
