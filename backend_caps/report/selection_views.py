"""A selection as sections: what was chosen, what else fits, and why the rest does not."""

from __future__ import annotations

from collections.abc import Iterator

from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.selection_documents import (
    CandidateDocument,
    ChoiceDocument,
    ReasonDocument,
    SelectionDocument,
)

_NO_USE = (
    "No flag that was asked puts a backend to use on this server: other flags go before it, or it "
    "is for drafts and --speculative-algorithm is not given."
)


def selection_view(selection: SelectionDocument) -> Iterator[Section]:
    """Show each flag's candidates, and everything that speaks against them."""
    if not selection.choices:
        yield Lines((_NO_USE,))
    for choice in selection.choices:
        yield Heading(choice.text)
        yield from _candidates(choice)
        yield from _rejected(choice)
        if selection.policy != "quiet":
            yield from _unchecked(choice)


def _candidates(choice: ChoiceDocument) -> Iterator[Section]:
    rows = [
        (each.name, _place(each), str(each.priority), each.host_seq_lens or "", each.costs)
        for each in choice.candidates
    ]
    if rows:
        yield Table(("backend", "fits", "priority", "host_seq_lens", "with it"), tuple(rows))
    else:
        yield Lines(("Install a plugin, or name the folder that one is in with --path.",))


def _place(tried: CandidateDocument) -> str:
    if tried.rank is None:
        return "no"
    return "chosen" if tried.rank == 1 else "yes"


def _rejected(choice: ChoiceDocument) -> Iterator[Section]:
    rows = [
        (found.code, each.name, found.actual or "", found.needed or "", _what(found))
        for each in choice.candidates
        for found in each.reasons
    ]
    if rows:
        yield Heading("What speaks against those that do not fit")
        columns = ("reason", "backend", "is", "needs", "what to do")
        yield Table(columns, tuple(rows), cells="names")


def _what(found: ReasonDocument) -> str:
    """Write what to do; where no values tell what is wrong, that too."""
    is_told = found.actual is not None and found.needed is not None
    return found.remedy if is_told else f"{found.message} {found.remedy}"


def _unchecked(choice: ChoiceDocument) -> Iterator[Section]:
    rows = [
        (each.name, ", ".join(dict.fromkeys(found.code for found in each.unchecked)))
        for each in choice.candidates
        if each.unchecked
    ]
    if not rows:
        return
    yield Heading("Not checked, so it speaks against nobody")
    yield Table(("backend", "not checked"), tuple(rows))
    if choice.unknown_facts:
        yield Lines((f"not known: {', '.join(choice.unknown_facts)}; --fact NAME=VALUE tells one",))
