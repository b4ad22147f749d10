"""The parts of every textual view: headings, sentences and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

Cells = Literal["sentences", "names"]
_Item = TypeVar("_Item")
Columns: TypeAlias = Mapping[str, Callable[[_Item], str]]
"""What writes the cells of each column, by the column's name."""
_SPECIAL = str.maketrans({character: "\\" + character for character in "\\|*_<>`[]#~&$"})


@dataclass(frozen=True, slots=True)
class Heading:
    """A title above what follows."""

    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, one a line."""

    lines: tuple[str, ...]
    holds: Literal["sentences", "commands", "places"] = "sentences"
    """The kind of lines. Only sentences are folded: a command or a path is copied from its line."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under their columns' names."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    cells: Cells = "sentences"
    """The kind of cells. A terminal breaks no name in the first column, and the names of columns at
    underscores."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing that fetches nothing; left out of formats that are text alone."""

    svg: str
    """The drawing, escaped."""
    style: str
    """The text of its style element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A value of a plan that a page shows opened, because the command named it."""

    name: str
    """The capability."""
    phase: str | None = None
    """The only phase that was named; it does not matter for a server's value."""


def visible(text: str) -> str:
    """Show control characters instead of sending them: a plugin's words are text."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


Section = Heading | Lines | Table
PagePart: TypeAlias = Section | Picture | Opened
Sections = Iterable[PagePart]


def table_of(items: Iterable[_Item], columns: Columns[_Item], cells: Cells = "sentences") -> Table:
    """Make a table with a row for each item; a column's function writes its cell."""
    write = tuple(columns.values())
    rows = tuple(tuple(cell(item) for cell in write) for item in items)
    return Table(tuple(columns), rows, cells)


def titled_table(
    title: str,
    columns: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    cells: Cells = "sentences",
) -> Iterator[Section]:
    """Yield a heading and a table under it; nothing where there are no rows."""
    if table_rows := tuple(rows):
        yield Heading(title)
        yield Table(columns, table_rows, cells)


def some_lines(lines: Iterable[str]) -> Iterator[Lines]:
    """Yield the sentences; nothing where there are none."""
    if sentences := tuple(lines):
        yield Lines(sentences)


def in_words(sections: Sections) -> Iterator[Section]:
    """Leave out pictures and what is opened, which only a page can show."""
    return (section for section in sections if isinstance(section, Section))


def markdown(sections: Sections) -> str:
    """Write sections as markdown. A plugin's words are text, never markup."""
    return "\n\n".join(map(_block, in_words(sections))) + "\n"


def _block(section: Section) -> str:
    match section:
        case Heading(text):
            return f"## {_text(text)}"
        case Lines(lines, "commands"):
            return "\n".join(("```sh", *(visible(line.strip()) for line in lines), "```"))
        case Lines(lines):
            return "\n".join(f"- {_text(line)}" for line in lines)
    head, *rows = (map(_text, row) for row in (section.columns, *section.rows))
    ruler = ("---",) * len(section.columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruler, *rows))


def _text(text: str) -> str:
    return visible(" ".join(text.split())).translate(_SPECIAL)
