"""Sections on a terminal, by rich."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from backend_caps.report.sections import Heading, Lines, Section, Sections, Table, in_words, visible

_UNBROKEN = 30
"""How long a name in the first column may be before it is broken."""
_WHOLE, _ROOMY = 20, 32
"""How long a word in another column may be before it is broken: where whole words would push
columns into a table below, and where there is room."""
_FLAG = 40
"""How long a flag may be, with quotes and brackets, before it is broken: no flag that a plan reads
is longer."""
_WIDTH = 100
"""Characters of a line where the output is no terminal: its text is then the same everywhere."""
_EDGES, _BETWEEN = 2, 3
"""Characters of a table beside its columns: at its sides, and between two columns."""
_PLAIN_BOX = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""Draws the line under a table's head with hyphens."""
_PLAIN = {"✓": "+", "✗": "x", "—": "-", "…": "...", "→": "->", "µ": "u", "·": "."}
"""Replaces our signs where the terminal's encoding lacks them."""


def show(sections: Sections, stream: TextIO | None = None) -> None:
    """Print sections to a stream, else to standard output.

    In colour only on a terminal, and never under `NO_COLOR`.

    A plugin's words are text: control characters are shown, not sent. Characters that the output's
    encoding lacks are replaced before columns are measured, so that these stay aligned.
    """
    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    for section in map(partial(_written, encoding=console.encoding), in_words(sections)):
        _print(console, section)


def _written(section: Section, *, encoding: str) -> Section:
    """Replace control characters, and those that the encoding lacks."""
    write = partial(_text, encoding=encoding)
    match section:
        case Heading(text):
            return Heading(write(text))
        case Lines(lines, holds):
            return Lines(tuple(map(write, lines)), holds)
        case _:
            rows = tuple(tuple(map(write, row)) for row in section.rows)
            return Table(tuple(map(write, section.columns)), rows, section.cells)


def _text(text: str, *, encoding: str) -> str:
    seen = visible(text)
    try:
        seen.encode(encoding)
    except UnicodeEncodeError:
        plain = "".join(_PLAIN.get(sign, sign) for sign in seen)
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return seen


def _print(console: Console, section: Section) -> None:
    match section:
        case Heading(text):
            console.print(Text(f"\n{text}", style="bold"))
        case Lines(lines, holds):
            for line in lines:
                console.print(Text(line), soft_wrap=holds != "sentences")
        case _:
            for part in _parts(section, console.width):
                console.print(_table(console, part))


def _table(console: Console, table: Table) -> RichTable:
    has_lines = console.encoding.startswith("utf")
    drawn = RichTable(box=box.SIMPLE_HEAD if has_lines else _PLAIN_BOX, pad_edge=False)
    is_names = table.cells == "names"
    for at, name in enumerate(table.columns):
        drawn.add_column(
            Text(_broken(name, _widest(table, at)) if is_names else name),
            # rich cuts what it does not wrap
            no_wrap=at == 0 and is_names and _widest(table, at) <= _UNBROKEN,
            overflow="fold",
            min_width=_unbroken(table) if at == 0 else 0,
        )
    for row in table.rows:
        drawn.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in row))
    _keep_words_whole(drawn, table, console.width)
    return drawn


def _parts(table: Table, width: int) -> Iterator[Table]:
    """Divide a table whose words would be broken to fit; each part has the first column.

    A part has as many columns as there is room for, and one at least.
    """
    chosen: list[int] = []
    for at in range(1, len(table.columns)):
        words = sum(_longest_word(table, column) for column in (0, *chosen, at))
        if chosen and words + _EDGES + _BETWEEN * (len(chosen) + 1) > width:
            yield _columns(table, (0, *chosen))
            chosen = []
        chosen.append(at)
    yield _columns(table, (0, *chosen))


def _columns(table: Table, chosen: Sequence[int]) -> Table:
    rows = tuple(tuple(row[at] for at in chosen) for row in table.rows)
    return Table(tuple(table.columns[at] for at in chosen), rows, table.cells)


def _widest(table: Table, at: int) -> int:
    """Measure the longest line in a column's cells."""
    return max((len(line) for row in table.rows for line in row[at].split("\n")), default=0)


def _unbroken(table: Table) -> int:
    """Measure the part of the first column that is not broken."""
    return min(_widest(table, 0), _UNBROKEN)


def _longest_word(table: Table, at: int, whole: int = _WHOLE) -> int:
    """Measure a column's longest word; the first column may need more."""
    cells = [
        min(len(word), _FLAG if word.lstrip("('").startswith("--") else whole)
        for row in table.rows
        for word in row[at].split()
    ]
    name = table.columns[at]
    if table.cells == "names":
        name = _broken(name, _widest(table, at))
    return max((_unbroken(table) if at == 0 else 0, *cells, *map(len, name.split())))


def _keep_words_whole(drawn: RichTable, table: Table, width: int) -> None:
    """Widen columns whose words would be broken, at the cost of the widest ones."""
    names = [str(column.header).split("\n") for column in drawn.columns]
    most = [max(_widest(table, at), *map(len, names[at])) for at in range(len(names))]
    room = width - _EDGES - _BETWEEN * (len(names) - 1)
    least = [_longest_word(table, at, _ROOMY) for at in range(len(names))]
    if sum(least) > room:
        least = [_longest_word(table, at) for at in range(len(names))]
    if _level(most, [0] * len(most), room) > max(least) or sum(least) > room:
        return
    level = _level(most, least, room)
    for column, narrowest, widest in zip(drawn.columns, least, most, strict=True):
        column.width = min(widest, max(narrowest, level))


def _level(most: Sequence[int], least: Sequence[int], room: int) -> int:
    """Return the width of the widest columns at which all together have room."""
    level = max(most)
    while level and sum(map(min, most, (max(width, level) for width in least))) > room:
        level -= 1
    return level


def _broken(name: str, width: int) -> str:
    """Break a name after underscores, so that no line but a single word is wider."""
    lines = [""]
    for word in re.findall(r"[^_]*_|[^_]+", name):
        if lines[-1] and len(lines[-1] + word) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


_STYLES = dict.fromkeys(("broken", "conflict"), "red")
_STYLES |= {"undeclared": "dim", "skipped": "yellow", "ok": "green"}
