"""What a command prints: a document in a format, its errors, examples, and what takes long."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from textwrap import indent
from types import MappingProxyType
from typing import ClassVar, Protocol

import click
from pydantic import BaseModel

from backend_caps.errors import CodedError
from backend_caps.extras import require_extra
from backend_caps.report.document import json_text
from backend_caps.report.sections import Opened, Sections, markdown


class CommandError(CodedError):
    """A command cannot do what its command line asks, or cannot write what it is to write."""

    codes: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "file-not-written": "`trace`: a file that was named cannot be written",
            "no-backend-named": "`generate`: no flag names the attention backend of a phase",
            "no-output": "standard output takes nothing: it is closed, or its disk is full",
            "plugin-folder": "`new-plugin`: the folder is not empty, or cannot be written",
            "plugin-name-misspelled": "`new-plugin`: no package can have the name",
            "plugin-name-taken": "`new-plugin`: something has the name, or it has a meaning",
        }
    )

    @property
    def is_usage(self) -> bool:
        """Whether the exit status is that of a wrong command line."""
        return self.code == "no-output" or self.code.startswith("plugin-")


class Format(Enum):
    """How a document is written."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"


class Show(Protocol):
    """Prints a document, or the sections that are made of it."""

    def __call__(
        self, document: BaseModel, sections: Sections, opened: Sequence[Opened] = (), /
    ) -> None:
        """Print; on a page, the values that are `opened` stand open."""


def printer(format_: Format) -> Show:
    """Return what prints a format; called early, its imports overlap the load of plugins.

    What it returns raises `CommandError` where standard output takes nothing.
    """
    if format_ is Format.TABLE:
        from backend_caps.report import terminal  # noqa: PLC0415 - rich, where a table is drawn

    def show(document: BaseModel, sections: Sections, opened: Sequence[Opened] = ()) -> None:
        with _guard():
            match format_:
                case Format.TABLE:
                    terminal.show(sections)
                case Format.JSON:
                    click.echo(json_text(document, indent=2))
                case Format.MARKDOWN:
                    click.echo(markdown(sections), nl=False)
                case _:  # HTML
                    from backend_caps.report.html.page import page  # noqa: PLC0415 - templates

                    click.echo(page(document, sections, opened), nl=False)

    return show


def say(text: str) -> None:
    """Print a text as it is.

    Raises:
        CommandError: standard output takes nothing.
    """
    with _guard():
        click.echo(text, nl=False)


@contextmanager
def _guard() -> Iterator[None]:
    """Turn a failed write to standard output into a `CommandError`."""
    if sys.stdout is None:
        raise _no_output("it is closed")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe: click ends silently
        raise
    except OSError as error:
        _forget_output()
        raise _no_output(error.strerror or str(error)) from error


def _no_output(problem: str) -> CommandError:
    return CommandError(
        "no-output",
        f"nothing can be written to standard output: {problem}; an open file, pipe or terminal "
        "with room was expected. Send the output elsewhere.",
    )


def _forget_output() -> None:
    """Send what is still buffered nowhere, or Python fails once more with it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def loading_torch(command: str, extra: str = "kit") -> Iterator[None]:
    """Say that torch loads, which takes a second or two, where a terminal shows it.

    What loads it runs long enough to need its garbage collected.

    Args:
        command: what needs it.
        extra: what brings torch, and all else that the command imports.

    Raises:
        MissingExtraError: the extra is not installed.
    """
    require_extra(extra, f"backend-caps {command}")
    with working("loading torch"):
        yield
    gc.enable()  # the program switched it off, for commands that end before it would matter


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Show a spinner on standard error while the block takes long, where that is a terminal.

    Nothing may be printed meanwhile, but for what is done in a process of its own.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from backend_caps.report.progress import spinning  # noqa: PLC0415 - rich, for terminals alone

    with spinning(doing):
        yield


def examples(*commands: str) -> str:
    """Write command lines as an epilog, which click folds nowhere.

    Args:
        commands: as they are typed; a long one goes on after a backslash at its line's end.
    """
    lines = "\n".join(indent(command, "  ") for command in commands)
    return f"\b\nExamples:\n{lines}"
