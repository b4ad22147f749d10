"""The output of commands: documents in a format, errors, examples and spinners."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from textwrap import indent
from typing import ClassVar, TypeAlias, TypeVar

import click
from click.decorators import FC
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


_Document = TypeVar("_Document", bound=BaseModel)
Writers: TypeAlias = Mapping[str, Callable[[_Document], str]]
"""What writes a document to a file, by the file's ending."""


def also_option(kinds: str) -> Callable[[FC], FC]:
    """Make `--also`, the files that a document is written to beside what is printed.

    Args:
        kinds: the formats and their endings, for the help.
    """
    return click.option(
        "--also",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Write it to this file too: {kinds}. Repeatable.",
    )


def require_writable(files: Iterable[Path], endings: Iterable[str]) -> None:
    """Refuse files that a document is not written to, before it is made.

    Raises:
        UsageError: one has another ending, or lies in a folder that is not there.
    """
    known = tuple(endings)
    for file in files:
        if file.suffix not in known:
            raise click.UsageError(
                f"--also {file} does not say what to write; a name that ends in one of "
                f"{', '.join(known)} was expected."
            )
        if not file.absolute().parent.is_dir():
            raise click.UsageError(f"--also {file} lies in a folder that is not there.")


def write_also(document: _Document, files: Iterable[Path], writers: Writers[_Document]) -> None:
    """Write a document to files, each in the format of its ending.

    Raises:
        UsageError: a file cannot be written.
    """
    for file in files:
        try:
            file.write_text(writers[file.suffix](document), "utf-8", "backslashreplace")
        except OSError as error:
            problem = error.strerror or str(error)
            raise click.UsageError(f"--also {file} was not written: {problem}.") from error


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
