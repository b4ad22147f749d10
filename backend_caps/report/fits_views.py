"""What of plugins holds with engines, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend_caps.compatibility.contact import Verdict
from backend_caps.report.fits_documents import ContactDocument, FitsDocument, PairDocument
from backend_caps.report.sections import Columns, Heading, Lines, Section, table_of
from backend_caps.report.words import counted, grouped

_FINDINGS = (Verdict.BREAKS, Verdict.CHANGED, Verdict.UNUSED)


def fits_view(document: FitsDocument) -> Iterator[Section]:
    """Show each finding with both places, and what holds in numbers."""
    for pair in document.pairs:
        yield from _pair(pair)
    if len(document.pairs) > 1:
        yield Heading("All")
        yield table_of(document.pairs, _PAIRS)


def _pair(pair: PairDocument) -> Iterator[Section]:
    yield Heading(title(pair))
    alike = grouped(
        ((each.verdict, each.kind, each.what, each.why), each) for each in pair.findings
    )
    for contacts in alike.values():
        yield from _finding(pair, contacts)
    yield Lines(tuple(_summary(pair)))


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
    return f"{contact.what} {contact.why}"


def _summary(pair: PairDocument) -> Iterator[str]:
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
