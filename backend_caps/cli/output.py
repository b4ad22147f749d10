"""Print a document in the format asked for."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import click
from pydantic import BaseModel

from backend_caps.report.markdown import markdown
from backend_caps.report.sections import Sections


class Format(Enum):
    """How a document is written."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


Show: TypeAlias = Callable[[BaseModel, Sections], None]
"""Prints a document, or the sections that are made of it."""


def printer(format_: Format) -> Show:
    """Load what a format needs; asked for early, it is loaded while plugins are read."""
    if format_ is Format.JSON:
        return _show_json
    if format_ is Format.MARKDOWN:
        return _show_markdown
    from backend_caps.report import terminal  # noqa: PLC0415 - rich, where a table is drawn

    return lambda _, sections: terminal.show(sections)


def _show_json(document: BaseModel, _: Sections) -> None:
    click.echo(document.model_dump_json(indent=2))


def _show_markdown(_: BaseModel, sections: Sections) -> None:
    click.echo(markdown(sections), nl=False)
