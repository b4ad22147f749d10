"""Which host lengths a backend reads, and on which of its lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from backend_caps.kit.subject import Subject
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Site

MIRROR = frozenset({"seq_lens_cpu", "seq_lens_sum"})
"""What only a host wait makes true."""
BOUND = frozenset({"seq_lens_cpu_upper_bound"})
"""What the host knows without waiting."""
CUTS = frozenset({"extend_seq_lens_cpu", "extend_prefix_lens_cpu"})
"""What the scheduler cut by itself."""
_PASSING_ON = frozenset({"copy", "copyreg", "dataclasses"})


@dataclass(frozen=True, slots=True)
class Read:
    """One look at a host length that was there."""

    name: str
    """The batch's field."""
    site: Site
    """The line that looked: the backend's own, where one of its lines was running."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The reads of the batches that it watches.

    Args:
        subject: whose reads they are.
    """

    subject: Subject
    seen: list[Read] = field(default_factory=list)
    """In their order, each as often as it was done."""

    def of(self, names: Iterable[str]) -> Sequence[Read]:
        """List reads of some fields, each line once."""
        wanted = frozenset(names)
        return list(dict.fromkeys(own for own in self.seen if own.name in wanted))

    def watch(self, batch: ForwardBatch) -> ForwardBatch:
        """Make a batch with the same values that tells of each read of a host length.

        A length that is None tells nothing: whoever looks finds that it is not there. A copy of the
        batch tells of its own reads; to be copied is none.
        """
        note = self._note

        class Watched(ForwardBatch):
            """A batch that tells what is read of it."""

            __slots__ = ()

            def __getattribute__(self, name: str) -> object:
                value: object = super().__getattribute__(name)
                if value is not None and name in _TOLD:
                    note(name)
                return value

        watched = copy(batch)
        watched.__class__ = Watched
        return watched

    def _note(self, name: str) -> None:
        """Take down who reads: the innermost line of the backend, else the line that does."""
        frame = sys._getframe(2)  # noqa: SLF001 - the reader's, behind this and `__getattribute__`
        if frame.f_globals["__name__"] in _PASSING_ON:
            return
        first = site = Site(frame.f_code.co_filename, frame.f_lineno)
        while not self.subject.owns(site.file):
            if frame.f_back is None:
                site = first
                break
            frame = frame.f_back
            site = Site(frame.f_code.co_filename, frame.f_lineno)
        self.seen.append(Read(name, site))


def told(reads: Sequence[Read], root: Path) -> str:
    """List what was read, and where, as seen from the folder of a backend's code."""
    shown: dict[str, list[str]] = {}
    for own in reads:
        file = Path(own.site.file)
        is_within = root.is_dir() and file.is_relative_to(root)
        name = file.relative_to(root) if is_within else file.name
        shown.setdefault(own.name, []).append(f"{name}:{own.site.line}")
    return " and ".join(f"{name} ({', '.join(lines)})" for name, lines in shown.items())


_TOLD = MIRROR | BOUND | CUTS
