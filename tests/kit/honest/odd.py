"""What an odd backend is: correct, and close to what some check is about."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import getdoc

from backend_caps.kit import Subject
from backend_caps.runtime.attention import AttentionBackend
from tests.kit.liars.liar import subject_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A backend that looks like a liar, and keeps every claim."""

    oddity: str
    """What it claims, and what it does."""
    check: str
    """The code of the check that it comes close to, which holds."""
    subject: Subject

    @property
    def name(self) -> str:
        """Its own."""
        return self.subject.name


def odd(kind: type[AttentionBackend], *, check: str, **claims: object) -> Odd:
    """Make an odd backend of a class whose docstring says in what it is odd.

    Args:
        kind: the class, at the top of its module.
        check: what it comes close to.
        claims: what it claims beside, or in place of, what liars claim by default.
    """
    oddity = getdoc(kind) or ""
    return Odd(oddity=oddity.splitlines()[0], check=check, subject=subject_of(kind, **claims))
