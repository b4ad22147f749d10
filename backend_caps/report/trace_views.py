"""A trace as sections, and as one SVG that says by itself what it shows."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from backend_caps.report import sections
from backend_caps.report.html.page import environment
from backend_caps.report.step_costs import drafts_words, level_words, micros
from backend_caps.report.trace_documents import TraceDetails, TracedLevelDocument, TraceDocument
from backend_caps.report.trace_layout import LETTER_PX, WIDTH, Panel, panels_of
from backend_caps.report.trace_timeline import Signal, Timeline
from backend_caps.report.words import counted

_TEMPLATES = Path(__file__).parent / "trace_templates"
_TEXTS = tomllib.loads((_TEMPLATES.parent / "data" / "trace.toml").read_text("utf-8"))
"""What a level comes to, in a title and in a sentence, and the keys of the legend."""
_TOP, _PANELS_APART, _LINE, _END = 74.0, 22.0, 19.0, 14.0
_KEY_LINE, _LEGEND_APART = 21.0, 23.0
"""From a line of the legend to the next, and from the last one to the caption."""
_MARGIN, _SIGN_PX, _KEYS_APART = 16.0, 24.0, 22.0
_MS = 1_000_000
_LETTERS = 188
"""As many as a line of the caption has room for."""


def trace_view(document: TraceDocument, files: Sequence[str]) -> Iterator[sections.Section]:
    """Show what a step came to at each level.

    Args:
        document: the trace.
        files: what was written, and where.
    """
    trace = document.otherData
    yield sections.Heading(f"{steps_words(trace)} on {trace.device}")
    yield sections.Lines(tuple(_what_ran(trace)))
    yield sections.table_of(trace.levels, _COLUMNS, "names")
    yield sections.Lines(tuple(_left_out(trace)))
    if files:
        yield sections.Lines(tuple(files), "places")


def steps_words(trace: TraceDetails) -> str:
    """Count what was recorded."""
    return f"{counted(trace.num_steps, 'decode step')} of {counted(trace.batch_size, 'request')}"


def _what_ran(trace: TraceDetails) -> Iterator[str]:
    yield f"plan {trace.plan}: host_seq_lens is {trace.level}, decided by {trace.decided_by}"
    if trace.drafts is not None:
        yield f"drafts: {drafts_words(trace.drafts)}"
    if trace.stand_in is not None:
        yield f"code: {trace.stand_in}"
    for change in trace.changes:
        where = "" if change.phase is None else f" in {change.phase}"
        yield f"with it {change.capability}{where} is {change.here}, decided was {change.decided}"
    yield from (f"left out: {own}" for own in trace.not_here)
    yield f"clock: {trace.clock_says}"


_COLUMNS: sections.Columns[TracedLevelDocument] = {
    "host_seq_lens": lambda own: level_words(own.level, is_planned=own.is_planned),
    "step µs": lambda own: micros(own.step_us),
    "for lengths µs": lambda own: micros(own.lengths_us),
    "forward idle µs": lambda own: micros(own.idle_us),
    "bytes to host": lambda own: f"{own.bytes_to_host:.0f}",
}


def _left_out(trace: TraceDetails) -> Iterator[str]:
    yield "means of a step; for lengths: how long the host stands still for them"
    for each in trace.left_out:
        yield f"not run with {each.level}: {each.reason}"


def picture_of(trace: TraceDetails, timelines: Sequence[Timeline]) -> sections.Picture:
    """Draw timelines one above the other, at one scale.

    Args:
        trace: what was run, and what it came to.
        timelines: a level each, as `trace.levels` has them.
    """
    panels = panels_of(timelines, top=_TOP, apart=_PANELS_APART)
    keys = tuple(_legend(panels, panels[-1].bottom + _PANELS_APART))
    caption_top = keys[-1].y + _KEY_LINE + _LEGEND_APART
    has_barrier = any(own.signal is Signal.WAR_BARRIER for each in timelines for own in each.arrows)
    sentences = tuple(map(sections.visible, sentences_of(trace, has_barrier=has_barrier)))
    lines = [line for sentence in sentences for line in _folded(sentence)]
    titles = [
        (_level_title(level), _TEXTS["levels"][_relayed(trace, level)]["title"])
        for level in trace.levels
    ]
    style = (_TEMPLATES / "trace.css").read_text("utf-8")
    svg = (
        environment(_TEMPLATES)
        .get_template("trace.svg")
        .render(
            style=Markup(style),  # noqa: S704 - ours
            width=WIDTH,
            height=caption_top + _LINE * len(lines) + _END,
            title=_title(trace),
            subtitle=_subtitle(trace),
            clock=f"Clock: {trace.clock_says}.",
            description=" ".join(sentences),
            panels=tuple(zip(panels, titles, map(_figures, trace.levels, timelines), strict=True)),
            legend=keys,
            lines=[(caption_top + _LINE * place, line) for place, line in enumerate(lines)],
        )
    )
    return sections.Picture(svg=svg, style=style)


def sentences_of(trace: TraceDetails, *, has_barrier: bool = True) -> Iterator[str]:
    """Say how the picture is read, and what it shows.

    Args:
        trace: what was run, and what it came to.
        has_barrier: whether a WAR barrier is drawn.
    """
    yield (
        "host_seq_lens is what the host gets of the lengths of requests. The lane host is the "
        "thread that launches work; every other lane is a stream of the device, which runs its "
        "work in order."
    )
    for level in trace.levels:
        yield _TEXTS["levels"][_relayed(trace, level)]["sentence"].format(**dict(level))
    if has_barrier:
        yield (
            "In each step the WAR barrier holds the schedule stream until the forward has read the "
            "last of what the scheduler writes; only then is the next batch made on the device."
        )
    for each in trace.left_out:
        yield f"Not run with {each.level}: {each.reason.removesuffix('.')}."
    if trace.stand_in is not None:
        yield f"Code that ran: {trace.stand_in}."


def _relayed(trace: TraceDetails, level: TracedLevelDocument) -> str:
    return level.level if trace.relays_lengths else "unrelayed"


class _Key(NamedTuple):
    x: float
    y: float
    sign: str
    """`box`, `arrow` or `mark`: how its kind is drawn."""
    kind: str
    """Of a mark, what is written."""
    name: str


def _legend(panels: Sequence[Panel], y: float) -> Iterator[_Key]:
    """Explain what is there to be explained, in lines of the picture's width."""
    drawn = {("box", box.kind) for panel in panels for box in panel.boxes}
    drawn |= {("arrow", arrow.kind) for panel in panels for arrow in panel.arrows}
    marks = [text for panel in panels for text in panel.texts if text.kind == "mark"]
    drawn |= {("mark", word) for mark in marks for word in mark.text.split()}
    x = _MARGIN
    keys: list[dict[str, str]] = _TEXTS["legend"]
    for sign, kind, name in (key.values() for key in keys):
        width = _SIGN_PX + len(name) * LETTER_PX
        if (sign, kind) not in drawn:
            continue
        if x + width > WIDTH - _MARGIN:
            x, y = _MARGIN, y + _KEY_LINE
        yield _Key(x=round(x, 1), y=y, sign=sign, kind=kind, name=name)
        x += width + _KEYS_APART


def _title(trace: TraceDetails) -> str:
    levels = [level.level for level in trace.levels]
    if len(levels) == 1:
        return f"Who waits for whom, with host_seq_lens {levels[0]}"
    return f"Who waits for whom: host_seq_lens {', '.join(levels[:-1])} above {levels[-1]}"


def _level_title(own: TracedLevelDocument) -> str:
    return f"host_seq_lens {level_words(own.level, is_planned=own.is_planned)}"


def _subtitle(trace: TraceDetails) -> str:
    drafts = "" if trace.drafts is None else f", {drafts_words(trace.drafts)}"
    return f"{steps_words(trace)}{drafts}; plan {trace.plan}, whose own level is {trace.level}"


def _figures(level: TracedLevelDocument, timeline: Timeline) -> str:
    whole = f"whole {(timeline.end_ns - timeline.begin_ns) / _MS:.2f} ms"
    lengths = f"waits for lengths {level.lengths_us:.0f} µs"
    idle = f"forward idle {level.idle_us:.0f} µs"
    return f"{whole} · of a step: {level.step_us:.0f} µs, {lengths}, {idle}"


def _folded(sentence: str) -> Iterator[str]:
    """Fold a sentence into lines of the picture's width."""
    line = ""
    for word in sentence.split():
        if line and len(line) + len(word) + 1 > _LETTERS:
            yield line
            line = ""
        line = f"{line} {word}".strip()
    yield line
