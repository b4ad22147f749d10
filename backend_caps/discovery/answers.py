"""What the process that reads declarations and its parent say to each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict


class Work(TypedDict):
    """What there is to read."""

    path: Sequence[str]
    """The `sys.path` to import from."""
    entries: Sequence[Sequence[str]]
    """Group and `module:ATTRIBUTE` of each."""
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An entry is begun, or done: a line on the pipe."""

    is_done: bool = True
    num_printed_bytes: int = 0
    """How far the output had come by then."""
    documents: Sequence[str] = ()
    """The declaration as JSON, or each of the rules."""
    declared_at: str | None = None
    """`file:line` of the object, where it was reached."""
    fault: str = ""
    """A problem's code."""
    detail: str = ""
    """What the problem's sentence has to tell."""
    loaded_torch: bool = False
    is_last: bool = False
    """No further one will come from that process."""

    def to_line(self) -> bytes:
        """Write it as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Answer:
        """Read it from a line.

        Raises:
            ValueError, TypeError: something else wrote into the pipe.
        """
        return cls(**json.loads(line))
