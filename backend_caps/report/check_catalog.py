"""The conformance kit's checks: what each proves and cannot find. Loads no torch."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol, TypeVar

from pydantic import Field

from backend_caps.errors import BackendCapsError
from backend_caps.report.document import Document

WIDE_CONTEXT = 300
"""Tokens of the longest context that `context-bound` tries."""


class CheckDescription(Document):
    """One question about a declaration."""

    code: str
    """A stable name, such as `mirror-absent`."""
    title: str
    """The question, as a statement that holds where it passes."""
    claims: list[str]
    """The capabilities that it is about; empty: what every backend owes the engine."""
    proves: str
    """What a pass means."""
    cannot: str
    """What it cannot find."""
    after: list[str] = Field(default_factory=list)
    """Checks that have to pass for this one to prove anything."""


class CheckListDocument(Document):
    """All checks, in the order in which they run."""

    schema_: Annotated[Literal["backend-caps/check-list@1"], Field(alias="schema")]
    checks: list[CheckDescription]
    """Each of them."""


@dataclass(eq=False, kw_only=True)
class UnknownCheckError(BackendCapsError):
    """No check has the code that was given."""

    code: str
    known: tuple[str, ...]

    @property
    def message(self) -> str:
        """The unknown code, the known ones, and where these are described."""
        return (
            f"there is no check {self.code!r}; expected one of: {', '.join(self.known)}. "
            f"backend-caps check --list says what each asks."
        )


class _Coded(Protocol):
    @property
    def code(self) -> str: ...


_CodedT = TypeVar("_CodedT", bound=_Coded)


def checks_named(checks: Sequence[_CodedT], codes: Collection[str]) -> Sequence[_CodedT]:
    """Choose checks by their codes, in the order in which they run; all where none is named.

    Raises:
        UnknownCheckError: no check has one of the codes.
    """
    known = tuple(check.code for check in checks)
    for code in codes:
        if code not in known:
            raise UnknownCheckError(code=code, known=known)
    return [check for check in checks if not codes or check.code in codes]


def _catalog() -> Iterator[CheckDescription]:
    text = (Path(__file__).parent / "data" / "checks.toml").read_text("utf-8")
    # The texts quote the context length that the check uses, and TOML has no constants.
    for stored in tomllib.loads(text.replace("WIDE_CONTEXT", str(WIDE_CONTEXT)))["checks"]:
        folded = {name: " ".join(stored[name].split()) for name in ("proves", "cannot")}
        yield CheckDescription(**{"claims": [], **stored, **folded})


CATALOG: Mapping[str, CheckDescription] = {check.code: check for check in _catalog()}
"""Every check by its code, in the order in which they run; `data/checks.toml` has their texts."""
