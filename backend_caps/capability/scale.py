"""Ordered enumerations, and the one-member ones that are states of their own."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering
from typing import Self


@total_ordering
class Scale(Enum):
    """Order the members as they are defined.

    Not an `IntEnum`: `True == 1` would make `needs_cpu_seq_lens=True` mean the second
    member. Not a `StrEnum`: its `max` is alphabetical.
    """

    rank: int

    def __new__(cls, value: str) -> Self:
        """Number the member by its place in the class body."""
        member = object.__new__(cls)
        member._value_ = value
        member.rank = len(cls.__members__)
        return member

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.rank < other.rank


class Undeclared(Enum):
    """What nobody stated. It resolves to the worst value, in the resolver alone."""

    UNDECLARED = "undeclared"

    def __repr__(self) -> str:
        return "UNDECLARED"


class Anything(Enum):
    """Every value is taken: stated, which is not the same as unstated."""

    ANY = "any"

    def __repr__(self) -> str:
        return "ANY"


UNDECLARED = Undeclared.UNDECLARED
"""What nobody stated. It resolves to the worst value."""
ANY = Anything.ANY
"""Every value is taken: stated, which is not the same as unstated."""
STATES = frozenset({ANY, UNDECLARED, ANY.value, UNDECLARED.value})
"""What stands in the place of any value, in Python and in JSON."""
