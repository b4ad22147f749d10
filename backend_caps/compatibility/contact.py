"""A point of contact of a plugin with an engine, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What becomes of a point of contact, the worst first."""

    BREAKS = "breaks"
    """It raises, or gets an argument that is meant for another parameter."""
    CHANGED = "changed"
    """It raises nothing, and may do something else."""
    UNUSED = "unused"
    """The engine takes it no more."""
    NOT_CHECKED = "not checked"
    """Only running code knows."""
    HOLDS = "holds"

    @property
    def is_finding(self) -> bool:
        """Whether something is to be done about it."""
        return self in {Verdict.BREAKS, Verdict.CHANGED, Verdict.UNUSED}

    @classmethod
    def of(cls, is_there: bool | None) -> Verdict:
        """Return the verdict on something that is there, is not, or may be."""
        return {True: cls.HOLDS, False: cls.BREAKS, None: cls.NOT_CHECKED}[is_there]


ASSIGNED_ELSEWHERE = "something may assign it, or not"
"""Why a read of an attribute is not checked that a whole class does not state."""


class ContactKind(Enum):
    """How a plugin meets an engine."""

    ENTRY_POINT = "entry point"
    """An entry point, whose group the engine looks for."""
    IMPORT = "import"
    """An import of one of the engine's modules or names."""
    READ = "read"
    """A read of an attribute of one of the engine's modules, classes or objects."""
    PATCH = "patch"
    """An assignment to an attribute of one of the engine's modules or classes."""
    CALL = "call"
    """A call of one of the engine's functions or classes."""
    RESULT = "result"
    """A result that is unpacked or returned, on either side."""
    CLASS = "class"
    """A class that derives from one of the engine's."""
    OVERRIDE = "override"
    """A method in the place of one of the engine's."""
    CONSTRUCTOR = "constructor"
    """The constructor of a class that the engine makes instances of."""
    MEMBER = "member"
    """A method or an attribute that the engine asks of a class of the plugin."""
    CLAIM = "claim"
    """A capability that the plugin declares to backend-caps, beside what its class states."""


class Form(Enum):
    """How something of an engine is used, whatever its parameters are."""

    VALUE = "a value that is read"
    CALLED = "called"
    AWAITED = "called and awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """A point of contact."""

    kind: ContactKind
    verdict: Verdict
    what: str
    """What the plugin uses or supplies."""
    at: str
    """`file:line` of the plugin."""
    why: str = ""
    """What is wrong, or why it was not checked; empty where it holds."""
    engine_at: str | None = None
    """`file:line` of the engine."""
    given: str = ""
    """The condition under which it counts, in the plugin's words."""
    remedy: str = ""
    """What to write."""
    parameters: tuple[str, ...] = ()
    """The parameters that the arguments of a call go to by position."""
    others: tuple[str, ...] = ()
    """The other parameters of what is called."""
    defaults: tuple[tuple[str, str], ...] = ()
    """The parameters of what is called that are left out, and what they are then."""
    owner_at: str = ""
    """`file:line` of the class of a method or an attribute; empty for others."""
    own: tuple[str, ...] = ()
    """The methods in a class's body that are there for the engine; none if a base is lost."""
    inherited: tuple[str, ...] = ()
    """The engine's methods that a class inherits, and that the engine calls."""
    called_of_self: tuple[str, ...] = ()
    """The engine's methods that a class inherits, and that they alone call."""
    values: tuple[tuple[str, str], ...] = ()
    """What a class has of the engine's that is a plain value, or a method that returns one."""
    form: Form | None = None
    """How it is used; None where the source does not tell."""

    @property
    def key(self) -> tuple[ContactKind, str, str, str]:
        """What it is, whichever version of the engine it is compared with.

        A branch for each version may define a method: its class is what tells it from others.
        """
        return self.kind, self.what, self.owner_at or self.at, self.given
