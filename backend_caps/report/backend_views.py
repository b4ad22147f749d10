"""A report as sections: backends side by side, evidence, and an engine's backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from backend_caps.capability.evidence import Change
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.backends import (
    BackendDocument,
    CapabilityDocument,
    ConditionDocument,
    EngineDocument,
    EvidenceDocument,
    PartDocument,
    ReportDocument,
)
from backend_caps.report.engine_plugins import EnginePluginDocument, plugin_view
from backend_caps.report.plan_views import plan_view
from backend_caps.report.sections import Heading, Lines, Section, Table, some_lines, titled_table
from backend_caps.report.words import file_of, grouped, words_of

_SIDE_BY_SIDE = 3
"""Columns of backends in one table: as many as a terminal of 100 characters holds."""
EVIDENCE_COLUMNS = ("backend", "checked", "what speaks against it")
"""The columns of `evidence_rows`."""
_MARKS: Mapping[str, str] = {"verified": " ✓", "stale": " ~", "failed": " ✗"}
_LEGEND = {
    "verified": "✓ held when the conformance kit looked, and nothing has changed since.",
    "stale": "~ the kit looked, and something has changed since.",
    "failed": "✗ did not hold when the kit looked.",
}
_FIRST = ("host_seq_lens", "shared_reads_end", "max_context_len_known")
"""Capabilities in the first columns, where the engine's source states them."""
_SHOWN_AS_NAMES = frozenset({"roles"})
"""Capabilities that follow from a class's registered names, and are shown in their column."""
_FIRST_COLUMN = "class, where"
_BESIDE_LONG_NAMES = 2
"""Columns of capabilities beside vLLM's registered names, which are long."""
_BATCHES: Mapping[frozenset[str], str] = {
    frozenset({"single_token_decode"}): "single tokens",
    frozenset({"single_token_decode", "uniform_batch"}): "uniform batches",
    frozenset({"single_token_decode", "uniform_batch", "mixed_batch"}): "every batch",
}
"""Short names of the sets of batches that engines replay; each set contains the one before."""


def report_view(report: ReportDocument) -> Iterator[Section]:
    """Show installed backends, or an engine's, then problems and the plan."""
    if report.engine is not None:
        yield from _engine_view(report.engine, report.backends, report.plugins or ())
    else:
        yield Heading("Backends")
        if report.backends:
            yield from backends_view(report.backends)
        else:
            yield Lines(
                (
                    "No installed distribution declares a backend.",
                    "Install a plugin, or name the folder that one is in with --path.",
                    "What extends vLLM by its own entry points is shown with --engine vllm.",
                )
            )
    yield from problems_view(report)
    if report.plan is not None:
        yield from plan_view(report.plan)


def backends_view(backends: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show backends side by side with what they declare."""
    yield _installed(backends)
    yield from _matrix([b for b in backends if b.status == "ok"])
    yield from some_lines(
        f"* {backend.name}: {name} is {words_of(when.value)} where {when.given}: {when.reason}"
        for backend, name, _, when in conditions_of(backends)
    )
    yield from some_lines(
        f"{b.name} hands its uses to {', '.join(b.parts)}" for b in backends if b.parts
    )
    yield from some_lines(
        f"{backend.name} becomes a backend of {engine} by {place}"
        for backend in backends
        for engine, place in sorted((backend.adapters or {}).items())
    )
    yield from evidence_view(backends)


def _installed(backends: Sequence[BackendDocument]) -> Table:
    columns = ("backend", "status", "distribution", "version", "declared at")
    rows = [
        (b.name, b.status, b.distribution or "", b.version or "", file_of(b.declared_at or ""))
        for b in backends
    ]
    return Table(columns, tuple(rows))


def _matrix(backends: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show declarations side by side; capabilities that none declares are only listed."""
    for start in range(0, len(backends), _SIDE_BY_SIDE):
        chunk = backends[start : start + _SIDE_BY_SIDE]
        capabilities = chunk[0].capabilities
        undeclared = [n for n in capabilities if not any(b.states(n) for b in chunk)]
        rows = [
            (name, *(_cell(backend.capabilities[name]) for backend in chunk))
            for name in capabilities
            if name not in undeclared
        ]
        backend_names = [backend.name for backend in chunk]
        if rows:
            yield Table(("capability", *backend_names), tuple(rows))
        if undeclared:
            yield Lines((f"undeclared by {', '.join(backend_names)}: {', '.join(undeclared)}",))


def _cell(stated: CapabilityDocument) -> str:
    return words_of(stated.value) + (" *" if stated.when else "") + mark_of(stated)


def conditions_of(
    backends: Sequence[BackendDocument],
) -> Iterator[tuple[BackendDocument, str, CapabilityDocument, ConditionDocument]]:
    """List the conditions, each with its backend, capability and the capability's document."""
    return (
        (backend, name, stated, when)
        for backend in backends
        for name, stated in backend.capabilities.items()
        for when in stated.when or ()
    )


def problems_view(report: ReportDocument) -> Iterator[Section]:
    """Show the problems of each backend, then those of no single backend."""
    named = [(backend.name, p) for backend in report.backends for p in backend.problems]
    named += [(own.distribution, p) for own in report.plugins or () for p in own.problems]
    problems = [*named, *(("", p) for p in report.problems)]
    rows = [(name, p.code, f"{p.message} {p.remedy}") for name, p in problems]
    return titled_table("Problems", ("backend", "problem", "what it is, what to do"), rows)


def mark_of(stated: CapabilityDocument) -> str:
    """Return the mark of a claim's evidence; empty without evidence."""
    return _MARKS.get(stated.evidence or "", "")


def evidence_view(backends: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show what the marks mean, and where each backend's evidence comes from."""
    rows = tuple(evidence_rows(backends))
    if not rows:
        return
    states = {stated.evidence for backend in backends for stated in backend.capabilities.values()}
    legend = [text for state, text in _LEGEND.items() if state in states]
    yield Heading("Evidence")
    if legend:
        yield Lines((*legend, "Without a mark, no check has looked."))
    yield Table(EVIDENCE_COLUMNS, rows)


def evidence_rows(backends: Sequence[BackendDocument]) -> Iterator[tuple[str, str, str]]:
    """List each plugin backend's conformance run, and what speaks against it.

    A backend without evidence has a row too, unless no backend has evidence.
    """
    if not any(backend.evidence for backend in backends):
        return
    for backend in backends:
        # The kit checks neither an engine's class or name, nor a composite.
        is_checked = (backend.class_, backend.classes, backend.parts) == (None, None, None)
        if backend.evidence is not None:
            yield backend.name, _run(backend.evidence), _against(backend.evidence)
        elif is_checked and backend.status == "ok":
            yield backend.name, "never", "it has no evidence"


def _run(evidence: EvidenceDocument) -> str:
    if evidence.date is None:
        return "not known"
    return (
        f"{evidence.date} on {evidence.device}, {evidence.num_seeds} seeds, by backend-caps "
        f"{evidence.kit_version}, torch {evidence.torch}"
    )


def _against(evidence: EvidenceDocument) -> str:
    parts = [
        evidence.problem or "",
        f"failed: {', '.join(evidence.failed)}" if evidence.failed else "",
        *(str(Change(what=c.what, was=c.was, now=c.now)) for c in evidence.changes),
    ]
    return "; ".join(text for text in parts if text) or "nothing"


def _engine_view(
    engine: EngineDocument,
    backends: Sequence[BackendDocument],
    extensions: Sequence[EnginePluginDocument],
) -> Iterator[Section]:
    """Show an engine's own backends as its source states them, then the plugins."""
    outside = {name for each in extensions for name in each.backends}
    by_plugin = {b.name: b for b in backends if b.class_ is not None and b.name in outside}
    classes = [b for b in backends if b.class_ is not None and b.name not in outside]
    names = [backend for backend in backends if backend.classes is not None]
    plugins = [b for b in backends if b.class_ is None and b.classes is None]
    source = "as installed" if engine.source == "installed" else f"read from {engine.source}"
    total = f"{_counted(len(classes), 'class', 'classes')}, {_counted(len(names), 'name', 'names')}"
    parsed = f"{engine.num_parsed:,} of {_counted(engine.num_files, 'file', 'files')} parsed"
    yield Heading(f"{_engine_name(engine)}, {source}: {total}; {parsed}")
    yield from _class_view(classes)
    yield from _shared_lines("Wrappers", ((b.composite, b.name) for b in classes if b.composite))
    yield from names_view(names)
    yield from rules_view(engine)
    for each in extensions:
        yield from plugin_view(each)
        yield from _class_view([by_plugin[name] for name in each.backends])
    if plugins:
        yield Heading("Plugins")
        yield from backends_view(plugins)


def _class_view(classes: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show classes with what they state, and what that depends on."""
    if classes:
        yield from _class_tables(classes)
        yield from _shared_lines("What depends on what", _dependences(classes))


def _engine_name(engine: EngineDocument) -> str:
    return " ".join(part for part in (engine.name, engine.version) if part)


def _counted(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _shared_lines(heading: str, texts: Iterable[tuple[str, str]]) -> Iterator[Section]:
    """Show each text once, after the names of all backends that it holds for."""
    if names_by_text := grouped(texts):
        yield Heading(heading)
        yield Lines(tuple(f"{', '.join(names)}: {text}" for text, names in names_by_text.items()))


def _class_tables(classes: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show a row for each class; further tables leave out classes that state nothing there."""
    shown_here = (name for name in CAPABILITIES if name not in _SHOWN_AS_NAMES)
    ordered = sorted(shown_here, key=lambda name: name not in _FIRST)
    stated = [name for name in ordered if any(backend.states(name) for backend in classes)]
    yield from some_lines(f"{name}: {_count(classes, name)}" for name in stated if name in _FIRST)
    num_main = sum(name in _FIRST for name in stated) or _BESIDE_LONG_NAMES
    columns = (_FIRST_COLUMN, "registered as", *stated[:num_main])
    main = [
        (
            _class_and_place(backend),
            ", ".join(backend.registered_as or ()),
            *(_class_cell(backend, name) for name in stated[:num_main]),
        )
        for backend in classes
    ]
    yield Table(columns, tuple(main), "names")
    for start in range(num_main, len(stated), _SIDE_BY_SIDE):
        shown = stated[start : start + _SIDE_BY_SIDE]
        rows = [
            (_class_and_place(backend), *(_class_cell(backend, name) for name in shown))
            for backend in classes
            if any(backend.states(name) for name in shown)
        ]
        yield Table((_FIRST_COLUMN, *shown), tuple(rows), "names")


def _class_and_place(backend: BackendDocument) -> str:
    """Write a class with its file, which distinguishes classes of one name."""
    return f"{backend.name.rpartition('.')[2]}\n{file_of(backend.declared_at or '')}".rstrip()


def _count(classes: Sequence[BackendDocument], capability: str) -> str:
    cells = sorted(_class_cell(backend, capability).replace("\n", " ") for backend in classes)
    return ", ".join(f"{value} {number}" for value, number in Counter(cells).most_common())


def _class_cell(backend: BackendDocument, capability: str) -> str:
    stated = backend.capabilities.get(capability)
    if stated is None:
        return backend.status
    if stated.origin == "not-known":
        return "not known"
    value = "depends" if stated.when else _words(capability, stated.value)
    return f"{value}\n(inherited)" if stated.origin == "inherited" else value


def _words(capability: str, value: JsonValue) -> str:
    if capability == "graph_replay" and isinstance(value, list):
        return _BATCHES.get(frozenset(map(str, value)), words_of(value))
    return words_of(value)


def _dependences(classes: Sequence[BackendDocument]) -> Iterator[tuple[str, str]]:
    for backend in classes:
        for capability, stated in backend.capabilities.items():
            if stated.when or stated.origin in {"conditional", "not-known"}:
                place = f" ({file_of(stated.declared_at)})" if stated.declared_at else ""
                yield f"{capability} {_dependence(capability, stated)}{place}", backend.name


def _dependence(capability: str, stated: CapabilityDocument) -> str:
    """Write each value with its condition, in the source's words."""
    cases = [f"{_words(capability, when.value)} where {when.given}" for when in stated.when or ()]
    if not cases:
        return f"{'depends' if stated.origin == 'conditional' else 'not known'}: {stated.words}"
    if stated.value not in ("depends", "undeclared"):
        cases.append(f"else {_words(capability, stated.value)}")
    return f"is {', '.join(cases)}"


def _choices(names: Sequence[BackendDocument]) -> Iterator[tuple[str, str]]:
    """List the classes of each name that depends on role, phase or a condition."""
    for backend in names:
        cases = grouped((part.given, part) for part in backend.classes or ())
        choices = [_chosen(given, parts) for given, parts in cases.items()]
        if choices != backend.parts:
            yield from ((text, backend.name) for text in choices)


def _chosen(given: str | None, parts: Iterable[PartDocument]) -> str:
    classes = grouped((part.name, part) for part in parts)
    named = "; ".join(f"{name}{_part_places(same)}" for name, same in classes.items())
    return named if given is None else f"{named}, where {given}"


def _part_places(parts: Sequence[PartDocument]) -> str:
    """Write the uses that a class takes; none for one that takes the target in every phase."""
    if any(part.phases is None and "target" in (part.roles or ["target"]) for part in parts):
        return ""
    places = (
        " and ".join(part.roles or ["anything"])
        + ("" if part.phases is None else f" in {' and '.join(part.phases)}")
        for part in parts
    )
    return f" as {', '.join(places)}"


def names_view(names: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show the names whose class depends on role, phase or a condition."""
    yield from _shared_lines("Names whose class depends on something", _choices(names))


def rules_view(engine: EngineDocument) -> Iterator[Section]:
    """Show what an engine's flags force, where its rules are known."""
    rows = [(rule.name, rule.given, rule.reason) for rule in engine.rules]
    return titled_table(f"Rules under {_engine_name(engine)}", ("rule", "where", "why"), rows)
