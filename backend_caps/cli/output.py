"""Print a document in the format asked for."""

from __future__ import annotations

from enum import Enum

import click
from pydantic import BaseModel

from backend_caps.report.markdown import markdown
from backend_caps.report.sections import Sections


class Format(Enum):
    """How a document is written."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


def show(document: BaseModel, sections: Sections, format_: Format) -> None:
    """Print a document as JSON, or its sections as tables or markdown."""
    if format_ is Format.JSON:
        click.echo(document.model_dump_json(indent=2, exclude_none=False))
    elif format_ is Format.MARKDOWN:
        click.echo(markdown(sections), nl=False)
    else:
        from backend_caps.report import terminal  # noqa: PLC0415 - rich, where a table is drawn

        terminal.show(sections)
