"""What of plugins holds with engines: in words, and as a badge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element, SubElement, tostring

from backend_caps.compatibility.contact import Verdict
from backend_caps.report.ci_formats import xml_text
from backend_caps.report.fits_documents import ContactDocument, FitsDocument, PairDocument
from backend_caps.report.sections import (
    Columns,
    Heading,
    Lines,
    PagePart,
    Picture,
    Section,
    table_of,
    visible,
)
from backend_caps.report.words import counted, grouped

_FINDINGS = (Verdict.BREAKS, Verdict.CHANGED, Verdict.UNUSED)
_COLORS = {"holds": "#0a6b57", "breaks": "#b3261e", "cannot say": "#59616b"}
"""A badge's colour, on which white text has a contrast of 5 and more."""
_LETTER, _EDGE, _HEIGHT = 7, 6, 20
"""A badge's measures in pixels: a letter's width, the room at an edge, and the height."""


def fits_view(document: FitsDocument) -> Iterator[PagePart]:
    """Show the badge, each finding with both places, and what holds in numbers."""
    yield Picture(svg=badge(document), style="")
    for pair in document.pairs:
        yield from _pair(pair)
    if len(document.pairs) > 1:
        yield Heading("All")
        yield table_of(document.pairs, _PAIRS)


def headline(document: FitsDocument) -> tuple[str, str]:
    """Say what plugins were compared with, and whether they hold: `fits vllm 0.33.0`, `holds`."""
    by_engine = grouped((each.engine, each.version or each.source) for each in document.pairs)
    engines = [
        f"{engine} {' to '.join(dict.fromkeys((versions[0], versions[-1])))}"
        for engine, versions in by_engine.items()
    ]
    return f"fits {', '.join(engines)}", _said(document)


def _said(document: FitsDocument) -> str:
    if document.status != "breaks":
        return document.status
    if len(document.pairs) > 1:
        num_broken = sum(each.status == "breaks" for each in document.pairs)
        return f"{num_broken} of {len(document.pairs)} break"
    return counted(
        sum(each.verdict is Verdict.BREAKS for each in document.pairs[0].findings), "break"
    )


def badge(document: FitsDocument) -> str:
    """Draw the headline as a badge: an SVG that fetches nothing."""
    label, said = (xml_text(visible(text)) for text in headline(document))
    left, right = (len(text) * _LETTER + 2 * _EDGE for text in (label, said))
    drawn = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(left + right),
            "height": str(_HEIGHT),
            "role": "img",
            "aria-label": f"{label}: {said}",
        },
    )
    SubElement(drawn, "title").text = f"{label}: {said}"
    fields = ((label, 0, left, "#3d444d"), (said, left, right, _COLORS[document.status]))
    for text, start, width, color in fields:
        size = {"x": str(start), "width": str(width), "height": str(_HEIGHT)}
        SubElement(drawn, "rect", size, fill=color)
        # A text is as wide as its field, whatever fonts there are.
        place = {"x": str(start + _EDGE), "y": "14", "textLength": str(width - 2 * _EDGE)}
        font = {"font-family": "Verdana, DejaVu Sans, sans-serif", "font-size": "11"}
        SubElement(drawn, "text", place | font, fill="#ffffff").text = text
    return tostring(drawn, encoding="unicode") + "\n"


def _pair(pair: PairDocument) -> Iterator[Section]:
    yield Heading(title(pair))
    alike = grouped(
        ((each.verdict, each.kind, each.what, each.why), each) for each in pair.findings
    )
    for contacts in alike.values():
        yield from _finding(pair, contacts)
    yield Lines(tuple(summary(pair)))


def title(pair: PairDocument) -> str:
    """Name a plugin and the releases that it is compared with."""
    plugin = " ".join(filter(None, (pair.plugin, pair.plugin_version)))
    release = " ".join(filter(None, (pair.engine, pair.version or pair.source)))
    if pair.before is not None:
        return f"{plugin} from {pair.engine} {pair.before} to {release}"
    return f"{plugin} with {release}"


def _finding(pair: PairDocument, contacts: Sequence[ContactDocument]) -> Iterator[Section]:
    first = contacts[0]
    yield Lines((f"{first.verdict.value}: {sentence(first)}",))
    places = [("plugin", each.at) for each in contacts]
    places += [("engine", first.engine_at or "")]
    places += [("if", first.given)]
    places += [("since", f"{pair.engine} {first.since}" if first.since else "")]
    places += [("write", first.remedy)]
    yield Lines(tuple(f"  {name:8}{text}" for name, text in places if text), "places")


def sentence(contact: ContactDocument) -> str:
    """Say what is wrong with a point of contact."""
    if contact.why.startswith(contact.what):
        return contact.why
    return f"{contact.what}: {contact.why}"


def summary(pair: PairDocument) -> Iterator[str]:
    """Say in numbers what holds, and what was left out."""
    num_found = dict.fromkeys(_FINDINGS, 0)
    for each in pair.findings:
        num_found[each.verdict] += 1
    num_holding = pair.counts.get(Verdict.HOLDS, 0)
    num_open = pair.counts.get(Verdict.NOT_CHECKED, 0)
    num_all = sum(pair.counts.values())
    yield (
        f"{counted(num_found[Verdict.BREAKS], 'break')}, "
        f"{counted(num_found[Verdict.CHANGED], 'change')} to look at, "
        f"{num_found[Verdict.UNUSED]} unused; {num_holding} of "
        f"{counted(num_all, 'point')} of contact hold, {num_open} not checked"
    )
    if pair.required is not None and pair.is_required is not None:
        within = "is among these" if pair.is_required else "is not among these"
        yield f"its metadata require {pair.engine}{pair.required}; {pair.version} {within}"
    if pair.num_unreached:
        files = counted(pair.num_unreached, "file")
        yield f"{files} of the plugin left out: no entry point leads there"
    yield from pair.problems


_PAIRS: Columns[PairDocument] = {
    "plugin": lambda pair: " ".join(filter(None, (pair.plugin, pair.plugin_version))),
    "engine": lambda pair: " ".join(filter(None, (pair.engine, pair.version))),
    "": lambda pair: pair.status,
    "breaks": lambda pair: _num(pair, Verdict.BREAKS),
    "changed": lambda pair: _num(pair, Verdict.CHANGED),
    "unused": lambda pair: _num(pair, Verdict.UNUSED),
    "not checked": lambda pair: str(pair.counts.get(Verdict.NOT_CHECKED, 0)),
}


def _num(pair: PairDocument, verdict: Verdict) -> str:
    return str(sum(each.verdict is verdict for each in pair.findings))
