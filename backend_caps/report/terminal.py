"""Sections on a terminal, by rich."""

from __future__ import annotations

import re

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from backend_caps.report.sections import Heading, Lines, Section, Sections, Table, visible

_UNBROKEN = 30
"""How long a name in the first column may be before it is broken."""
_WIDTH = 100
"""Where the output is no terminal: the same text everywhere."""


def show(sections: Sections) -> None:
    """Print sections; in colour only on a terminal, and never under `NO_COLOR`.

    A plugin's words are text: control characters are shown, not sent.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    for section in sections:
        _print(console, section)


def _print(console: Console, section: Section) -> None:
    match section:
        case Heading(text):
            console.print(Text(f"\n{visible(text)}", style="bold"))
        case Lines(lines, holds):
            for line in lines:
                console.print(Text(visible(line)), soft_wrap=holds != "sentences")
        case _:
            console.print(_table(section))


def _table(table: Table) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for at, column in enumerate(table.columns):
        lines = [line for row in table.rows for line in row[at].split("\n")]
        widest = max(map(len, lines), default=0)
        name = visible(column)
        drawn.add_column(
            Text(_broken(name, widest) if table.cells == "names" else name),
            no_wrap=at == 0 and table.cells == "names",
            overflow="fold",
            min_width=min(widest, _UNBROKEN) if at == 0 else 0,
        )
    for row in table.rows:
        drawn.add_row(*(_cell(text) for text in row))
    return drawn


def _broken(name: str, width: int) -> str:
    """Break a name after underscores, so that no line but a single word is wider."""
    lines = [""]
    for word in re.findall(r"[^_]*_|[^_]+", name):
        if lines[-1] and len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


_STYLES = {
    "undeclared": "dim",
    "broken": "red",
    "conflict": "red",
    "skipped": "yellow",
    "ok": "green",
}


def _cell(text: str) -> Text:
    return Text(visible(text), style=_STYLES.get(text, ""))
