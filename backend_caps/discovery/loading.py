"""Reading of declarations, in a child process.

A plugin may print, hang, exit or crash while it is imported; in a child, each becomes a problem of
that plugin. The child is started first: it imports its modules while the parent reads metadata.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from os import PathLike

from backend_caps.capability.provenance import Status
from backend_caps.discovery.metadata import target
from backend_caps.discovery.process import Answer, Child, Search, Work, start_early
from backend_caps.discovery.scan import AllowList, Claim, Scan, admit, installed_release, scan

DEADLINE_S = 10.0
"""The seconds that one entry may take."""
LONGEST_DEADLINE_S = 86_400.0
"""A day: the system's timers overflow on large numbers."""
_START_S = 60.0
"""The seconds that the child may take to start; no plugin is blamed for them."""
_SHOWN = 200
"""The characters of a plugin's output that a report shows."""
_WRITES = "writes into the pipe of the results"


def begin(
    path: Sequence[str | PathLike[str]] | None = None,
    *,
    allow: Collection[str] | AllowList | None = None,
    deadline_s: float = DEADLINE_S,
    environ: Mapping[str, str],
    early: tuple[Search, Child | None] | None = None,
) -> Loading:
    """Scan the metadata and start reading declarations.

    `Registry.of_loading` waits for the results; a caller imports slow modules in between. `early`
    is the result of `start_early`, from a caller that started the child before it imported this
    module.
    """
    search, child = early or start_early(None if path is None else Search.of_folders(path))
    admitted = admit(scan(search), AllowList.of(allow, environ))
    return Loading(admitted, deadline_s=deadline_s, executable=sys.executable, early=child)


class Loading:
    """Declarations that a child process is reading."""

    def __init__(
        self, scanned: Scan, *, deadline_s: float, executable: str, early: Child | None = None
    ) -> None:
        self.scanned = scanned
        self._deadline_s = deadline_s
        self._executable = executable
        self._waiting = [claim for claim in scanned.claims if claim.status is Status.OK]
        self._results = [claim for claim in scanned.claims if claim.status is not Status.OK]
        self._child = self._start(early)

    def results(self) -> tuple[Claim, ...]:
        """Wait for every declaration; claims that the scan refused are included."""
        try:
            while self._child is not None:
                self._read(self._child)
                self._child.close()
                self._child = self._start()
        finally:
            self.close()
        return tuple(self._results)

    def close(self) -> None:
        """Kill the child; claims that are not read yet are marked as not started."""
        if self._child is not None:
            self._child.close()
            self._child = None
        self._give_up("reading was ended before its turn")

    def _start(self, early: Child | None = None) -> Child | None:
        """Give a child the waiting claims; None where there is none."""
        if not self._waiting:
            if early is not None:
                early.close()
            return None
        try:
            child = early or Child(self.scanned.imports, executable=self._executable)
        except OSError as error:
            self._give_up(f"{self._executable!r} did not start: {error.strerror}")
            return None
        # `target` drops the extras that an entry may name; the scan has validated the form.
        entries = [(each.group, ":".join(target(each.value) or ())) for each in self._waiting]
        child.give(Work(path=self.scanned.imports, entries=entries, deadline_s=self._deadline_s))
        return child

    def _read(self, child: Child) -> None:
        """Read answers until every claim has one, or a plugin has ended the child."""
        num_waiting = len(self._waiting)
        begun: Answer | None = None
        while self._waiting:
            answer = _answer(child, _START_S if begun is None else self._deadline_s)
            if not answer.is_done:
                begun = answer
                continue
            if begun is not None:
                claim = _noisy(self._waiting.pop(0), child, begun, answer)
                self._results.append(_loaded(claim, answer))
                begun = None
            if answer.is_last:
                break
        if len(self._waiting) == num_waiting:
            printed = child.printed(0, child.num_printed_bytes())
            self._give_up(f"the process that reads says {printed.decode('utf-8', 'replace')!r}")

    def _give_up(self, cause: str) -> None:
        self._results += [claim.broken_by("not-started", cause=cause) for claim in self._waiting]
        self._waiting.clear()


def _answer(child: Child, timeout_s: float) -> Answer:
    """Wait for the next answer; the end of the child becomes a last one."""
    try:
        line = child.line(timeout_s)
        if line:
            return Answer.from_line(line)
    except TimeoutError:
        ending = Answer(fault="hangs", detail=f"{timeout_s:g} s")
    except ValueError:
        ending = Answer(fault="exits", detail=_WRITES)
    else:
        ending = _ending(child.status(), timeout_s)
    return replace(ending, num_printed_bytes=child.num_printed_bytes(), is_last=True)


def _ending(status: int | None, deadline_s: float) -> Answer:
    """Return the fault of the current entry, by how the child ended."""
    if status is None:
        return Answer(fault="exits", detail="closes the pipe of the results")
    if status >= 0:
        return Answer(fault="exits", detail=f"ends its process with status {status}")
    if status == -signal.SIGALRM:
        return Answer(fault="hangs", detail=f"{deadline_s:g} s")
    name = signal.strsignal(-status)
    return Answer(fault="crashes", detail=f"signal {-status} ({name})")


def _noisy(claim: Claim, child: Child, begun: Answer, ended: Answer) -> Claim:
    """Mark a claim that printed between its two answers."""
    num_bytes = ended.num_printed_bytes - begun.num_printed_bytes
    if num_bytes <= 0:  # it can be less where a plugin forges an answer
        return claim
    output = child.printed(begun.num_printed_bytes, ended.num_printed_bytes)
    text = output.decode("utf-8", "replace").strip()
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return claim.marked(claim.status, "prints", output=shown, num_bytes=num_bytes)


def _loaded(claim: Claim, answer: Answer) -> Claim:
    """Add the documents or the fault of a claim's answer."""
    if answer.loaded_torch:
        claim = claim.marked(claim.status, "imports-torch")
    if answer.fault == "schema":
        claim = claim.broken_by("schema", detail=answer.detail, installed=installed_release())
    elif answer.fault:
        claim = claim.broken_by(answer.fault, detail=answer.detail)
    elif claim.is_backend and len(answer.documents) != 1:
        claim = claim.broken_by("exits", detail=_WRITES)
    return replace(claim, documents=answer.documents, declared_at=answer.declared_at)
