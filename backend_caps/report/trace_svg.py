"""A trace as one SVG that says by itself what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from backend_caps.report.measure_views import drafts_words
from backend_caps.report.sections import visible
from backend_caps.report.trace_documents import TraceDetails, TracedLevelDocument
from backend_caps.report.trace_layout import WIDTH, panel_of, scale_of
from backend_caps.report.trace_shapes import Key, Panel
from backend_caps.report.trace_timeline import Signal, Timeline
from backend_caps.report.trace_views import steps_words

_TEMPLATES = Path(__file__).parent / "trace_templates"
_TOP, _BETWEEN, _LEGEND, _LINE, _END = 74.0, 22.0, 44.0, 19.0, 14.0
_LETTER_PX = 6.2
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
    has_barrier = any(own.signal is Signal.WAR_BARRIER for each in timelines for own in each.arrows)
    sentences = tuple(map(visible, sentences_of(told, has_barrier=has_barrier)))
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
        legend=tuple(_legend(panels)),
        lines=[(legend_top + _LEGEND + _LINE * place, line) for place, line in enumerate(lines)],
    )


def sentences_of(told: TraceDetails, *, has_barrier: bool = True) -> Iterator[str]:
    """Say what the picture shows.

    Args:
        told: what was run, and what it came to.
        has_barrier: whether a WAR barrier is drawn.
    """
    for level in told.levels:
        relays = level.level if told.relays_lengths else ""
        yield _LEVELS[relays].format(
            level=level.level,
            lengths=f"{level.lengths_us:.0f}",
            tokens=f"{level.tokens_us:.0f}",
            idle=f"{level.idle_us:.0f}",
            bytes=f"{level.bytes_of_lengths:.0f}",
        )
    if has_barrier:
        yield (
            "In each step the WAR barrier holds the schedule stream until the forward has read the "
            "last of what the scheduler writes; only then is the next batch made on the device."
        )
    for each in told.left_out:
        yield f"Not run with {each.level}: {each.reason.removesuffix('.')}."
    if told.stand_in is not None:
        yield f"Code that ran: {told.stand_in}."


_KEYS = (
    ("build", "build batch"),
    ("launch", "launch"),
    ("results", "results"),
    ("wait", "the host waits"),
    ("draft", "draft"),
    ("verify", "verify"),
    ("decode", "decode"),
    ("extend", "draft_extend"),
    ("other", "other work"),
    ("idle", "idle, with its length"),
    ("mark", "publish"),
)
_LEVELS = {
    "": (
        "{level}: no lengths are relayed from step to step, so the level does nothing here; the "
        "host waits {tokens} µs of a step for tokens, and the forward stream is idle for {idle} µs."
    ),
    "exact": (
        "exact: the host waits {lengths} µs of a step until verify has published and {bytes} bytes "
        "of lengths have crossed, and launches the next step only then; the forward stream is "
        "idle for {idle} µs."
    ),
    "upper_bound": (
        "upper_bound: the host counts a bound by itself and launches a step while the one "
        "before runs; it waits for no lengths, {tokens} µs of a step for tokens, and the forward "
        "stream is idle for {idle} µs."
    ),
    "none": (
        "none: no length crosses, so the host launches a step while the one before runs; it "
        "waits {tokens} µs of a step for tokens, and the forward stream is idle for {idle} µs."
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


def _legend(panels: Sequence[Panel]) -> Iterator[Key]:
    """Explain what is there to be explained."""
    drawn = {box.kind for panel in panels for box in panel.boxes}
    drawn |= {text.kind for panel in panels for text in panel.texts}
    x = 16.0
    for kind, name in _KEYS:
        if kind in drawn:
            yield Key(x=x, kind=kind, name=name)
            x += 24 + len(name) * _LETTER_PX + 22


def _title(told: TraceDetails) -> str:
    levels = [level.level for level in told.levels]
    if len(levels) == 1:
        return f"Who waits for whom, with host_seq_lens {levels[0]}"
    return f"Who waits for whom: host_seq_lens {', '.join(levels[:-1])} above {levels[-1]}"


def _subtitle(told: TraceDetails) -> str:
    drafts = "" if told.drafts is None else f", {drafts_words(told.drafts)}"
    return f"{steps_words(told)}{drafts}; plan {told.plan}, whose own level is {told.level}"


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
