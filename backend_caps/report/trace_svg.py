"""A trace as one SVG that says by itself what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from backend_caps.report.measure_views import drafts_words
from backend_caps.report.sections import visible
from backend_caps.report.trace_documents import TraceDetails, TracedLevelDocument
from backend_caps.report.trace_layout import WIDTH, panel_of, scale_of
from backend_caps.report.trace_shapes import Panel
from backend_caps.report.trace_timeline import Timeline

_TEMPLATES = Path(__file__).parent / "trace_templates"
_TOP, _BETWEEN, _LEGEND, _LINE, _END = 74.0, 22.0, 44.0, 19.0, 14.0
_LETTERS = 188
"""As many as a line of the caption has room for."""


def svg_of(told: TraceDetails, timelines: Sequence[Timeline]) -> str:
    """Draw timelines one above the other, at one scale.

    Args:
        told: what was run, and what it came to.
        timelines: a level each, as `told.levels` has them.
    """
    panels = _panels(timelines)
    legend_top = panels[-1].bottom + _BETWEEN
    sentences = tuple(map(visible, sentences_of(told)))
    lines = [line for sentence in sentences for line in _folded(sentence)]
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("trace.svg").render(
        width=WIDTH,
        height=legend_top + _LEGEND + _LINE * len(lines) + _END,
        title=_title(told),
        subtitle=visible(_subtitle(told)),
        clock=visible(f"Clock: {told.clock_says}."),
        description=" ".join(sentences),
        panels=tuple(zip(panels, told.levels, map(_figures, told.levels), strict=True)),
        legend_top=legend_top,
        lines=[(legend_top + _LEGEND + _LINE * place, line) for place, line in enumerate(lines)],
    )


def sentences_of(told: TraceDetails) -> Iterator[str]:
    """Say what the picture shows."""
    for level in told.levels:
        yield _LEVELS[level.level].format(
            lengths=f"{level.lengths_us:.0f}",
            tokens=f"{level.tokens_us:.0f}",
            idle=f"{level.idle_us:.0f}",
            bytes=f"{level.bytes_of_lengths:.0f}",
        )
    yield (
        "In each step the WAR barrier holds the schedule stream until the forward has read the "
        "last of what the scheduler writes; only then is the next batch gathered on the device."
    )
    for each in told.left_out:
        yield f"Not run with {each.level}: {each.reason}."
    if told.stand_in is not None:
        yield f"Code that ran: {told.stand_in}."


_LEVELS = {
    "exact": (
        "exact: the host waits {lengths} µs of a step until verify has published and {bytes} bytes "
        "of lengths have crossed, and launches the next step only then; the forward stream is "
        "idle for {idle} µs."
    ),
    "upper_bound": (
        "upper_bound: the host counts a bound by itself and launches a step ahead; it waits for "
        "no lengths, {tokens} µs for tokens, and the forward stream is idle for {idle} µs."
    ),
    "none": (
        "none: no length crosses, so the host launches a step ahead; it waits {tokens} µs of a "
        "step for tokens, and the forward stream is idle for {idle} µs."
    ),
}


def _panels(timelines: Sequence[Timeline]) -> list[Panel]:
    scale = scale_of(timelines)
    lanes = [*dict.fromkeys(lane for own in timelines for lane in own.lanes)]
    panels: list[Panel] = []
    for timeline in timelines:
        top = panels[-1].bottom + _BETWEEN if panels else _TOP
        panels.append(panel_of(timeline, top=top, px_per_ns=scale, lanes=lanes))
    return panels


def _title(told: TraceDetails) -> str:
    levels = [level.level for level in told.levels]
    if len(levels) == 1:
        return f"How steps overlap, with host_seq_lens {levels[0]}"
    return f"How steps overlap: host_seq_lens {', '.join(levels[:-1])} above {levels[-1]}"


def _subtitle(told: TraceDetails) -> str:
    drafts = "" if told.drafts is None else f", {drafts_words(told.drafts)}"
    return (
        f"{told.num_steps} decode steps of {told.batch_size} requests{drafts}; plan {told.plan}, "
        f"whose own level is {told.level}"
    )


def _figures(level: TracedLevelDocument) -> str:
    lengths = f"waits for lengths {level.lengths_us:.0f} µs"
    return f"step {level.step_us:.0f} µs · {lengths} · forward idle {level.idle_us:.0f} µs"


def _folded(sentence: str) -> Iterator[str]:
    """Fold a sentence into lines of the picture's width."""
    line = ""
    for word in sentence.split():
        if line and len(line) + len(word) + 1 > _LETTERS:
            yield line
            line = ""
        line = f"{line} {word}".strip()
    yield line
