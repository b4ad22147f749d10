"""Sections as GitHub-flavoured markdown."""

from __future__ import annotations

from backend_caps.report.sections import Heading, Lines, Section, Sections, in_words, visible

_SPECIAL = str.maketrans({character: "\\" + character for character in "\\|*_<>`[]#~&$"})


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
    ruler = ("---",) * len(section.columns)
    heads = tuple(map(_text, section.columns))
    return "\n".join(map(_row, (heads, ruler, *_escaped(section.rows))))


def _escaped(rows: tuple[tuple[str, ...], ...]) -> list[tuple[str, ...]]:
    return [tuple(map(_text, row)) for row in rows]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    return visible(" ".join(text.split())).translate(_SPECIAL)
