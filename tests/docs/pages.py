"""The pages, and what is asked of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.tools.markdown import anchor_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = ROOT / "docs" / "reference"

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    """Name a page as its readers find it."""
    return str(page.relative_to(ROOT))


def prose_of(page: Path) -> str:
    """Return a page without its code blocks."""
    return _FENCED.sub("", page.read_text("utf-8"))


def links_of(page: Path) -> Iterator[str]:
    """List where a page links to, outside code."""
    yield from _LINK.findall(_INLINE.sub("", prose_of(page)))


def anchors_of(page: Path) -> set[str]:
    """List the headings of a page as links name them."""
    return {anchor_of(heading) for heading in _HEADING.findall(prose_of(page))}
