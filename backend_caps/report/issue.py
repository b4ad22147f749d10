"""Findings in an engine's own class as a report to its maintainers, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend_caps.report.check_documents import CostDocument
from backend_caps.report.check_views import cost_words
from backend_caps.report.words import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """A script that shows a fault with torch and the engine alone, and what became of it here."""

    text: str
    command: str
    """How it was run: variables of the environment, and the interpreter."""
    printed: str
    """The end of what it printed."""
    shows: bool
    """Whether it failed as the finding says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueEntry:
    """One cause of findings."""

    check: str
    """The check's code."""
    title: str
    """The statement that does not hold."""
    what: str
    """What was seen."""
    places: Sequence[str]
    """Lines of the engine where it was seen, `file:line`; the first is the case's."""
    case: str
    """The case that found it."""
    replay: str
    """The command that runs the case again."""
    also: Sequence[str]
    """Other checks that fail at the same line."""
    cost: CostDocument | None
    """What an eager batch of the case's forward costs, where it was counted."""
    script: ScriptRun | str
    """The script, or why there is none."""


def issue_text(
    backend: str,
    versions: Mapping[str, str],
    stand_ins: Sequence[str],
    entries: Sequence[IssueEntry],
) -> str:
    """Write a report.

    Args:
        backend: the engine's class.
        versions: of what ran, by name.
        stand_ins: what was run in place of functions that need a GPU.
        entries: its findings.
    """
    return "\n".join(_lines(backend, versions, stand_ins, entries))


def _lines(
    backend: str,
    versions: Mapping[str, str],
    stand_ins: Sequence[str],
    entries: Sequence[IssueEntry],
) -> Iterator[str]:
    yield f"# {counted(len(entries), 'fault')} of `{backend}`\n"
    yield f"Versions: {', '.join(f'{name} {own}' for name, own in versions.items())}.\n"
    for stand_in in stand_ins:
        yield f"Stood in for: {stand_in}.\n"
    for entry in entries:
        yield from _entry(entry)


def _entry(entry: IssueEntry) -> Iterator[str]:
    yield f"## `{entry.check}` fails\n"
    yield f"Stated: {entry.title}\n"
    yield f"Seen: {entry.what}.\n"
    if entry.places:
        yield f"At {', '.join(f'`{place}`' for place in entry.places)}.\n"
    if entry.also:
        yield f"Checks that fail there too: {', '.join(f'`{code}`' for code in entry.also)}.\n"
    yield f"Case `{entry.case}`, which runs again by\n\n```sh\n{entry.replay}\n```\n"
    if entry.cost is not None:
        yield f"Cost: {cost_words(entry.cost)}.\n"
    yield from [f"{entry.script}\n"] if isinstance(entry.script, str) else _script(entry.script)


def _script(run: ScriptRun) -> Iterator[str]:
    yield f"A script shows it with torch and the engine alone:\n\n```python\n{run.text}```\n"
    shows = "It shows the fault" if run.shows else "It did not show the fault"
    yield f"{shows} here, by `{run.command}`, and printed\n\n```text\n{run.printed}\n```\n"
