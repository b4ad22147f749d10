"""Print a document in the format asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import click
from pydantic import BaseModel

from backend_caps.errors import BackendCapsError
from backend_caps.report.document import json_text
from backend_caps.report.markdown import markdown
from backend_caps.report.sections import Opened, Sections


class Format(Enum):
    """How a document is written."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


@dataclass(eq=False, kw_only=True)
class OutputError(BackendCapsError):
    """Standard output takes nothing: it is closed, or its disk is full."""

    problem: str

    @property
    def message(self) -> str:
        """What the system says of it, and what to do."""
        return (
            f"nothing can be written to standard output: {self.problem}; an open file, pipe or "
            f"terminal with room was expected. Send the output elsewhere."
        )


class Show(Protocol):
    """Prints a document, or the sections that are made of it."""

    def __call__(
        self, document: BaseModel, sections: Sections, opened: Sequence[Opened] = (), /
    ) -> None:
        """Print; on a page, the values that are `opened` stand open."""


def printer(format_: Format) -> Show:
    """Load what a format needs; asked for early, it is loaded while plugins are read.

    What it returns raises `OutputError` where standard output takes nothing.
    """
    return _guarded(_printer(format_))


def say(text: str) -> None:
    """Print a text as it is.

    Raises:
        OutputError: standard output takes nothing.
    """
    with _guard():
        click.echo(text, nl=False)


def _printer(format_: Format) -> Show:
    if format_ is Format.JSON:
        return _show_json
    if format_ is Format.MARKDOWN:
        return _show_markdown
    if format_ is Format.HTML:
        return _show_html
    from backend_caps.report import terminal  # noqa: PLC0415 - rich, where a table is drawn

    return lambda _, sections, __=(): terminal.show(sections)


def _guarded(show: Show) -> Show:
    def guarded(document: BaseModel, sections: Sections, opened: Sequence[Opened] = ()) -> None:
        with _guard():
            show(document, sections, opened)

    return guarded


@contextmanager
def _guard() -> Iterator[None]:
    """Say of standard output that takes nothing what the system says of it."""
    if sys.stdout is None:
        raise OutputError(problem="it is closed")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read it has enough: click ends without a word
        raise
    except OSError as error:
        _forget_output()
        raise OutputError(problem=error.strerror or str(error)) from error


def _forget_output() -> None:
    """Send what is still buffered nowhere, or Python fails once more with it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _show_json(document: BaseModel, _: Sections, __: Sequence[Opened] = ()) -> None:
    click.echo(json_text(document, indent=2))


def _show_markdown(_: BaseModel, sections: Sections, __: Sequence[Opened] = ()) -> None:
    click.echo(markdown(sections), nl=False)


def _show_html(document: BaseModel, sections: Sections, opened: Sequence[Opened] = ()) -> None:
    from backend_caps.report.html.page import page  # noqa: PLC0415 - templates, for pages alone

    click.echo(page(document, sections, opened), nl=False)
