"""The generated parts of `docs/reference/benchmarks.md`: what benchmarks have written as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from benchmarks.recorded import RESULTS
from docs.tools.markdown import bullets, table

ORDER: dict[str, str] = {
    "startup": "Start of a command",
    "discovery": "Discovery",
    "resolution": "Resolution",
    "engines": "Reading an engine",
    "relay": "The relay's calls",
    "waits": "What a speculative step waits for",
    "rules": "What a rule set costs",
    "runtime": "The overlapped loop",
    "simulator": "The simulated accelerator",
    "kernels": "Kernels of Triton on it",
    "agreement": "Agreement of ranks",
    "pages": "A report as a page",
}
"""Benchmarks as the page has them, with their headings."""
_GPU: dict[str, str] = {
    "gpu.json": "Steps on a GPU: how long one takes, and what overlap and each mirror cost there",
    "attention.json": "Attention on a GPU: how near each backend comes to the memory's bandwidth",
}
"""What `make gpu` writes, and what it is about."""
_SHOWN_COUNTS = "32 of 4,096 rows"
"""Of counts over a grid the page has one place; the JSON has all."""
_MICROSECONDS = re.compile(r"(?<=\d) us\b")
"""As a terminal of ASCII alone shows it."""


class Measured(TypedDict):
    """A ratio, as the JSON has it."""

    what: str
    ratio: float
    low: float
    high: float
    measured: str
    told: str


class Counted(TypedDict):
    """A count, as the JSON has it."""

    what: str
    ours: int
    theirs: int | None


class Result(TypedDict):
    """A benchmark's file."""

    name: str
    date: str
    machine: dict[str, str | int]
    repeat: str
    compares: str
    ratios: list[Measured]
    counts: list[Counted]


def _results() -> Iterator[Result]:
    """Read what was written, in the page's order."""
    for name in ORDER:
        path = RESULTS / f"{name}.json"
        if path.exists():
            result: Result = json.loads(path.read_text("utf-8"))
            yield result


def measured() -> str:
    """Give each benchmark's ratios and counts."""
    return "\n\n".join(_section(result) for result in _results())


def _section(result: Result) -> str:
    first, _, second = result["compares"].partition(" / ")
    sides = f"First side: {first}. Second side: {second}."
    head = f"### {ORDER[result['name']]}\n\n{sides}"
    again = f"```sh\n{result['repeat']}\n```"
    return "\n\n".join((head, *_ratios(result), *_counts(result), again))


def _ratios(result: Result) -> Iterator[str]:
    rows = [
        (
            each["what"],
            f"**{_number(each['ratio'])}**",
            f"{_number(each['low'])} to {_number(each['high'])}",
            each["measured"],
            _MICROSECONDS.sub(" µs", each["told"]),
        )
        for each in result["ratios"]
    ]
    if rows:
        yield table(("", "ratio", "half lies in", "measured", "for a sense of size"), rows)


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 1 / 10 else f"{value:.2f}"


def _counts(result: Result) -> Iterator[str]:
    counts = result["counts"]
    shown = [each for each in counts if _SHOWN_COUNTS in each["what"]] or counts
    rows = [
        (each["what"], f"{each['ours']:,}", "" if each["theirs"] is None else f"{each['theirs']:,}")
        for each in shown
    ]
    if rows:
        yield table(("counted, the same on every machine", "ours", "theirs"), rows)


def machines() -> str:
    """Give the machine and the versions of each day's results."""
    told = {
        (result["date"], ", ".join(f"{key} {value}" for key, value in result["machine"].items()))
        for result in _results()
    }
    return bullets(f"{date}: {words}." for date, words in sorted(told))


def not_measured() -> str:
    """Say which benchmarks have no result, on the CPU or on a GPU."""
    folder = RESULTS.parent
    kept = {result["name"] for result in _results()}
    lines = [f"{heading}: not measured yet." for name, heading in ORDER.items() if name not in kept]
    lines += [
        f"**{what}.** `make gpu` would write `{name}`."
        for name, what in _GPU.items()
        if not _is_gpu(folder / name)
    ]
    return bullets(lines)


def _is_gpu(path: Path) -> bool:
    """Tell whether a file holds a run on hardware, and no rehearsal."""
    return path.exists() and '"hardware"' in path.read_text("utf-8")


def on_gpus() -> str:
    """Give what `make gpu` measured."""
    paths = [RESULTS.parent / name for name in _GPU]
    return "\n\n".join(_of_gpu(path) for path in paths if _is_gpu(path))


def _of_gpu(path: Path) -> str:
    document = json.loads(path.read_text("utf-8"))
    rows: list[dict[str, str | int | float | None]] = document["rows"]
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "reason"]
    ran = [row for row in rows if not row.get("reason")]
    cells = [[_cell(row.get(key)) for key in columns] for row in ran]
    reasons = dict.fromkeys((row["side"], row["reason"]) for row in rows if row.get("reason"))
    not_run = bullets(f"{side} did not run: `{reason}`." for side, reason in reasons)
    words = [column.replace("_", " ") for column in columns]
    head = f"### {document['benchmark'].capitalize()} on {document['hardware']}"
    made = f"{document['date']}: torch {document['torch']}, python {document['python']}."
    return "\n\n".join(filter(None, (head, made, table(words, cells), not_run)))


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
