"""Our entries in the bytes of an `entry_points.txt`.

Only the lines of our sections are decoded and parsed, each by itself: what is wrong elsewhere
in the file costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from entrypoints import BadEntryPoint, EntryPoint

_MENTION = re.compile(rb"backend[-_.]caps")
_OURS = re.compile(r"\s*backend[-_.]caps(\..*)?\s*")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of one of our sections."""

    group: str
    line: int
    text: str
    name: str | None = None
    """None where the line does not have the form of an entry."""
    value: str = ""
    is_valid: bool = True


def mentions_us(data: bytes) -> bool:
    """Tell whether a file may hold a section of ours: cheap, and never wrongly false."""
    return _MENTION.search(data) is not None


def our_entries(data: bytes) -> Iterator[Entry]:
    """List the entries of the sections whose names begin with ours."""
    group: str | None = None
    for number, raw in enumerate(data.removeprefix(_BOM).splitlines(), start=1):
        line = raw.strip()
        if line.startswith(b"["):
            group, is_closed = _our_group(line)
            if group is not None and not is_closed:
                yield Entry(group=group, line=number, text=_text(line), is_valid=False)
        elif group is not None and line and line[:1] not in b"#;":
            yield _entry(group, number, line)


def _our_group(header: bytes) -> tuple[str | None, bool]:
    name, bracket, rest = header[1:].rpartition(b"]")
    text = _text(name or rest)
    return (text if _OURS.fullmatch(text) else None), bool(bracket)


def _entry(group: str, number: int, line: bytes) -> Entry:
    text = _text(line)
    name, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not name:
        return Entry(group=group, line=number, text=text, is_valid=False)
    is_valid = _is_utf8(line) and target(value) is not None
    return Entry(group=group, line=number, text=text, name=name, value=value, is_valid=is_valid)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "backslashreplace")


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def target(value: str) -> tuple[str, str] | None:
    """Split `module:ATTRIBUTE`; None where it does not have that form."""
    try:
        entry = EntryPoint.from_string(value, "")
    except BadEntryPoint:
        return None
    return (entry.module_name, entry.object_name) if entry.object_name else None
