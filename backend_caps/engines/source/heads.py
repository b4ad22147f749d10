"""Class statements in the text of files, found without parsing it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from backend_caps.engines.source.guards import grouped

_HEAD = re.compile(rb"class[ \t]+([\w\x80-\xff]+)[ \t]*(?:\[[^\]\n]{0,400}\][ \t]*)?\(")
_IN_BASES = re.compile(rb"#[^\n]*|[()]|\n[ \t\f]*class[ \t]|[^()#\n]+|\n")
_WORD = re.compile(rb"[\w\x80-\xff]+")
_DOTTED = re.compile(rb"[\w.]{1,400}")
_LONGEST_WORD = 200
_FARTHEST = 4096
"""The most bytes that are searched for the end of a class statement's bases."""


class Head(NamedTuple):
    """A class statement in a file's text."""

    name: str
    bases: frozenset[str]
    """The last word of each base, as `B` of `a.B`."""
    at: int
    """The offset of the statement in the text."""


class Heads:
    """The class statements of a tree's files."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files

    @cached_property
    def by_file(self) -> Mapping[str, list[Head]]:
        """The class statements of each file that has any."""
        found = {path: list(_heads_of(text)) for path, text in self._files.items()}
        return {path: heads for path, heads in found.items() if heads}

    def files_below(self, roots: Collection[str]) -> list[str]:
        """List the files with a direct or indirect subclass of any of `roots`."""
        names = self.names_below(roots)
        return sorted(p for p, heads in self.by_file.items() if any(h.name in names for h in heads))

    def names_below(self, roots: Collection[str]) -> frozenset[str]:
        """List the names of `roots` and of their direct and indirect subclasses."""
        names = set(roots)
        fresh = list(roots)
        while fresh:
            below = {name for base in fresh for name in self._below.get(base, ())}
            fresh = sorted(below - names)
            names |= below
        return frozenset(names)

    @cached_property
    def _below(self) -> Mapping[str, list[str]]:
        """The names of the direct subclasses of each base, also by the base's other names."""
        known = frozenset(head.name for heads in self.by_file.values() for head in heads)
        below: dict[str, list[str]] = {}
        for path, heads in self.by_file.items():
            by_base = grouped((base, head) for head in heads for base in head.bases)
            for base, subclasses in by_base.items():
                originals = self._originals(path, base, subclasses[0].at, is_class=base in known)
                for name in (base, *originals):
                    below.setdefault(name, []).extend(head.name for head in subclasses)
        return below

    def _originals(self, path: str, name: str, until: int, *, is_class: bool) -> list[str]:
        """List the names that a file renames to `name` before an offset of its text."""
        text, word = self._files[path][:until], name.encode()
        *aliases, _ = text.split(b" as " + word)
        words = [_last_word(each[-_LONGEST_WORD:]) for each in aliases]
        if not is_class:
            _, *values = text.split(word + b" = ")
            words += [_last_word(match[0]) for match in map(_DOTTED.match, values) if match]
        return list(filter(None, words))


def _heads_of(text: bytes) -> Iterator[Head]:
    for match in _HEAD.finditer(text):
        at = match.start()
        before = text[text.rfind(b"\n", max(at - _FARTHEST, 0), at) + 1 : at]
        if not before or before.isspace():
            bases = _bases(text, match.end())
            if bases is not None:
                names = frozenset(word for base in bases.split(b",") if (word := _last_word(base)))
                yield Head(match[1].decode(errors="replace"), names, at)


def _bases(text: bytes, start: int) -> bytes | None:
    """Return the bases without comments; None where they do not end.

    Arguments of a call among the bases count as bases.
    """
    pieces, depth = [], 1
    for match in _IN_BASES.finditer(text, start, start + _FARTHEST):
        token = match[0]
        depth += {b"(": 1, b")": -1}.get(token, 0)
        # To stop at the next class statement keeps the search linear in the text's length.
        if not depth or (token.startswith(b"\n") and token.strip()):
            break
        if not token.startswith(b"#"):
            pieces.append(b"," if token in b"()" else token)
    else:
        return None
    return b"".join(pieces)


def _last_word(base: bytes) -> str:
    """Return the last word of a base; an empty text if it ends in none."""
    # Matched in the reversed text: a search for the last word could take quadratic time.
    word = _WORD.match(base.partition(b"[")[0].rstrip()[::-1])
    return word[0][::-1].decode(errors="replace") if word else ""
