"""Where a check goes: to standard output in the format asked for, and to files by their endings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from backend_caps.cli.output import Format, printer, say
from backend_caps.report.check_documents import CheckDocument, CheckListDocument
from backend_caps.report.check_views import check_list_view, check_view
from backend_caps.report.document import json_text
from backend_caps.report.junit import junit
from backend_caps.report.markdown import markdown
from backend_caps.report.sarif import sarif

_WRITERS = {
    ".json": lambda document: f"{json_text(document, indent=2)}\n",
    ".md": lambda document: markdown(check_view(document)),
    ".sarif": sarif,
    ".xml": junit,
}
"""What is written to a file of an ending."""
_OF_CI = {"junit": junit, "sarif": sarif}


def check_files(files: Iterable[Path]) -> None:
    """Refuse files that a check is not written to.

    Raises:
        UsageError: one has another ending, or lies in a folder that is not there.
    """
    for file in files:
        if file.suffix not in _WRITERS:
            known = ", ".join(_WRITERS)
            raise click.UsageError(
                f"--also {file} does not say what to write; a name that ends in one of {known} "
                "was expected."
            )
        if not file.absolute().parent.is_dir():
            raise click.UsageError(f"--also {file} lies in a folder that is not there.")


def show_check(document: CheckDocument, format_: str, files: Iterable[Path]) -> None:
    """Print a check, and write it to files.

    Raises:
        UsageError: a file cannot be written.
    """
    writer = _OF_CI.get(format_)
    if writer is None:
        printer(Format(format_))(document, check_view(document))
    else:
        say(writer(document))
    for file in files:
        try:
            file.write_text(_WRITERS[file.suffix](document), "utf-8", "backslashreplace")
        except OSError as error:
            problem = error.strerror or str(error)
            raise click.UsageError(f"--also {file} was not written: {problem}.") from error


def show_list(document: CheckListDocument, format_: str) -> None:
    """Print which checks there are.

    Raises:
        UsageError: the format is one of what was found.
    """
    if format_ in _OF_CI:
        raise click.UsageError(f"--format {format_} is of what was found; --list finds nothing.")
    printer(Format(format_))(document, check_list_view(document))
