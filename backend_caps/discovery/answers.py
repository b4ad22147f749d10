"""What the process that reads declarations and its parent say to each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

FAULTS = (
    "crashes",
    "exits",
    "hangs",
    "missing-attribute",
    "missing-module",
    "raises",
    "schema",
    "wrong-type",
)
"""The codes of what can become of an entry."""
_TOO_MANY_BYTES = 1 << 62
"""No file has as many."""


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
            ValueError, TypeError, RecursionError: something else wrote into the pipe.
        """
        answer = cls(**json.loads(line))
        if not answer._is_ours():
            raise ValueError(line)
        return answer

    def _is_ours(self) -> bool:
        """Tell whether every field is such as the reading process sends."""
        said: tuple[tuple[object, tuple[type, ...]], ...] = (
            *((switch, (bool,)) for switch in (self.is_done, self.loaded_torch, self.is_last)),
            (self.num_printed_bytes, (int,)),
            (self.documents, (list, tuple)),
            *((text, (str,)) for text in (*self.documents, self.detail)),
            (self.declared_at, (str, type(None))),
        )
        are_typed = all(type(value) in types for value, types in said)
        is_known = not self.fault or self.fault in FAULTS
        return are_typed and is_known and 0 <= self.num_printed_bytes < _TOO_MANY_BYTES
