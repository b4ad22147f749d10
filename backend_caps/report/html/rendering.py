"""What reads templates: pages, and the drawing of a trace, are written by the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from backend_caps.report.sections import visible

if TYPE_CHECKING:
    from pathlib import Path


def environment(folder: Path) -> Environment:
    """Make what reads the templates of a folder.

    It escapes whatever a template puts in, shows its control characters, and knows no name that
    it was not given.
    """
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )


def _finalize(value: object) -> object:
    """Show control characters of whatever text a template puts in."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)
