"""The output of commands: documents in a format, errors, examples and spinners."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from textwrap import indent
from typing import ClassVar, TypeAlias

import click
from pydantic import BaseModel

from backend_caps.errors import CodedError
from backend_caps.extras import require_extra
from backend_caps.report.document import json_text
from backend_caps.report.sections import Sections, markdown


class CommandError(CodedError):
    """A command cannot do what its command line asks, or cannot write its output."""

    codes: ClassVar[Mapping[str, str]] = {
        "file-not-written": "`trace`: a file that was named cannot be written",
        "no-backend-named": "`generate`: no flag names the attention backend of a phase",
        "no-output": "standard output takes nothing: it is closed, or its disk is full",
        "plugin-folder": "`new-plugin`: the folder is not empty, or cannot be written",
        "plugin-name-misspelled": "`new-plugin`: no package can have the name",
        "plugin-name-taken": "`new-plugin`: something has the name, or it has a meaning",
    }

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


Show: TypeAlias = Callable[[BaseModel, Sections], None]
"""Prints a document, or the sections that are made of it."""


def printer(format_: Format) -> Show:
    """Return the function that prints a format.

    Call it early: its imports then overlap the load of plugins. The function raises
    `CommandError` where standard output takes nothing.
    """
    if format_ is Format.TABLE:
        from backend_caps.report import terminal  # noqa: PLC0415 - rich, where a table is drawn

    def show(document: BaseModel, sections: Sections) -> None:
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

                    click.echo(page(document, sections), nl=False)

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
    """Redirect standard output to the null device: Python flushes its buffer at exit."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


@contextmanager
def loading_torch(command: str, extra: str = "kit") -> Iterator[None]:
    """Show a spinner while a block loads torch, which takes a second or two.

    Garbage is collected from then on: commands with torch run long enough to need it.

    Args:
        command: the command that needs torch.
        extra: the extra with torch, and all else that the command imports.

    Raises:
        MissingExtraError: the extra is not installed.
    """
    require_extra(extra, f"backend-caps {command}")
    with working("loading torch"):
        yield
    gc.enable()  # `__main__` switches it off: short commands end before it would pay


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Show a spinner on standard error while a block runs long, where that is a terminal.

    The block must not print, except in a child process.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from backend_caps.report.progress import spinning  # noqa: PLC0415 - rich, for terminals alone

    with spinning(doing):
        yield


def examples(*commands: str) -> str:
    """Write command lines as an epilog whose lines click does not fold.

    Args:
        commands: as they are typed; a long one goes on after a backslash at its line's end.
    """
    lines = "\n".join(indent(command, "  ") for command in commands)
    return f"\b\nExamples:\n{lines}"
