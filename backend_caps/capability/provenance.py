"""The origin of a value, the source and status of a declaration, and its problems.

It is free of pydantic: the scan for plugins runs before pydantic is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import NamedTuple


class Origin(Enum):
    """How a value came to be."""

    DECLARED = "declared"
    """The backend's author stated it."""
    CONDITIONAL = "conditional"
    """The author stated it for a condition, and the condition holds."""
    UNDECIDED = "undecided"
    """A condition cannot be decided yet; the value covers both ways."""
    UNDECLARED = "undeclared"
    """It is not stated: the worst value."""
    NOT_KNOWN = "not-known"
    """An engine's source does not state it, and its author could not have declared it here: it
    counts as the worst value, and makes no problem."""
    INHERITED = "inherited"
    """An engine's subclass has it from its base and does not state it again."""
    UNVERIFIED = "unverified"
    """The author stated it, and the evidence that was required is not there: the worst value."""
    FORCED = "forced"
    """A rule forces it, whatever the backends say."""
    OVERRIDDEN = "overridden"
    """An operator's override replaced it."""
    MISSING = "missing"
    """The backend could not be read: the worst value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The distribution and the line of a declaration."""

    distribution: str | None = None
    version: str | None = None
    declared_at: str | None = None
    """`file:line`."""

    def __str__(self) -> str:
        shipped = " ".join(part for part in (self.distribution, self.version) if part)
        return ", ".join(part for part in (shipped, self.declared_at) if part) or "by hand"


BY_HAND = Source()
"""The source of what no distribution ships."""


class Status(Enum):
    """The outcome of reading a backend's declaration."""

    OK = "ok"
    """It was read."""
    BROKEN = "broken"
    """It could not be read."""
    CONFLICT = "conflict"
    """Several distributions claim its name."""
    SKIPPED = "skipped"
    """It was left out, for a stated cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong, as data: a report shows it, a caller reads the code."""

    code: str
    """Stable; listed in docs/reference/problems.md."""
    message: str
    remedy: str
    actual: str | None = field(default=None, compare=False)
    """The value found, where it is one; the message has it too."""
    needed: str | None = field(default=None, compare=False)
    """What was needed instead."""

    @property
    def is_open(self) -> bool:
        """Whether information is missing: a value is not declared, or a fact is not given."""
        return self.code.endswith(("-not-checked", "-not-declared"))


class ProblemText(NamedTuple):
    """The texts of a code, with values to fill in as in `str.format`."""

    meaning: str
    message: str
    remedy: str
    hint: str = ""
    """The remedy where a value `meant` is known."""

    def problem(self, code: str, **values: object) -> Problem:
        """Fill in the values."""
        remedy = self.remedy if values.get("meant") is None else self.hint
        message = self.message.format(**values)
        return Problem(code=code, message=message, remedy=remedy.format(**values))


@cache
def problem_texts(module: str) -> Mapping[str, ProblemText]:
    """Read the texts of each stable code from the `problems.toml` beside a module."""
    # Only what finds a problem needs them, and these imports take as long as a scan.
    import tomllib  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    stored = tomllib.loads(Path(module).with_name("problems.toml").read_text("utf-8"))
    return {code: ProblemText(**{"meaning": "", **texts}) for code, texts in stored.items()}
