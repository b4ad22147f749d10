"""The shapes on a page: what is told by colour is told by them as well."""

from __future__ import annotations

from enum import Enum
from typing import Self


class Glyph(Enum):
    """A shape with its meaning, drawn by the symbol of its name in `templates/glyphs.html`."""

    meaning: str

    DECLARED = "declared", "the backend states it"
    CONDITIONAL = "conditional", "depends on something"
    INHERITED = "inherited", "only a base class states it, so it counts as undeclared"
    UNDECLARED = "undeclared", "nobody states it, so it counts as the worst"
    BROKEN = "broken", "the declaration cannot be read"
    CONFLICT = "conflict", "several claim the name"
    SKIPPED = "skipped", "not asked for, or another goes before it"
    VERIFIED = "verified", "held when the kit looked, and nothing has changed since"
    STALE = "stale", "the kit looked, and something has changed since"
    FAILED = "failed", "did not hold when the kit looked"
    STRICTER = "stricter", "the engine must supply more, or the backend can do less"
    BECAME_CONDITIONAL = "became-conditional", "depends on a condition now"
    VANISHED = "vanished", "is not there any more"
    LOOSER = "looser", "the engine must supply less, or the backend can do more"
    APPEARED = "appeared", "was not there"
    BECAME_UNCONDITIONAL = "became-unconditional", "depends on no condition any more"
    CHANGED = "changed", "another, and neither stricter nor looser"

    def __new__(cls, symbol: str, meaning: str) -> Self:
        """Keep the meaning beside the symbol's name, which is the value."""
        glyph = object.__new__(cls)
        glyph._value_ = symbol
        glyph.meaning = meaning
        return glyph

    @classmethod
    def of(cls, symbol: str) -> Self:
        """Find a shape by its symbol's name, which a document has as origin, state or kind."""
        return next(glyph for glyph in cls if glyph.value == symbol)

    @property
    def label(self) -> str:
        """Its name in words."""
        return str(self.value).replace("-", " ")
