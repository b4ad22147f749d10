"""A point at which a plugin meets an engine, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of a point of contact."""

    BREAKS = "breaks"
    HIDDEN = "hidden"
    """It is lost, and a handler of the plugin hides that."""
    CHANGED = "changed"
    """It goes on, and may mean something else."""
    UNUSED = "unused"
    """Nothing of the engine takes it any more."""
    NOT_CHECKED = "not checked"
    HOLDS = "holds"

    @property
    def is_fine(self) -> bool:
        """Whether nothing is to be done about it."""
        return self in {Verdict.HOLDS, Verdict.NOT_CHECKED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """A point of contact."""

    verdict: Verdict
    what: str
    """What the plugin uses or supplies."""
    at: str
    """`file:line` of the plugin."""
    why: str = ""
    engine_at: str | None = None
    """`file:line` of the engine."""
    given: str = ""
    """The condition under which it counts, in the plugin's words."""
    remedy: str = ""
    """What to write."""
    is_override: bool = False
    """Whether it is a method in the place of one of the engine's."""
    bound: tuple[str, ...] = ()
    """The parameters that the arguments of a call go to by place."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is, whichever version of the engine it is compared with."""
        return self.what, self.at, self.given
