"""A report on an engine's own backends as sections: a row for each class, and what it hangs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.documents import BackendDocument, CapabilityDocument, ReportDocument
from backend_caps.report.engine_documents import EngineDocument, PartDocument
from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.views import backends_view, plan_view, problems_view
from backend_caps.report.words import file_of, words_of

_FIRST = ("host_seq_lens", "shared_reads_end", "max_context_len_known")
"""What is asked for first, where the engine's source says it."""
_TOLD_BY_NAMES = frozenset({"roles"})
"""What follows from the names that a class is registered as, and is shown with them."""
_SIDE_BY_SIDE = 3
"""Capabilities in one table: as many as a terminal of 100 columns holds."""
_FIRST_COLUMN = "class, where"
_BESIDE_LONG_NAMES = 2
"""As many where the names that classes are registered as are vLLM's, which are long."""
_BATCHES: Mapping[frozenset[str], str] = {
    frozenset({"single_token_decode"}): "single tokens",
    frozenset({"single_token_decode", "uniform_batch"}): "uniform batches",
    frozenset({"single_token_decode", "uniform_batch", "mixed_batch"}): "every batch",
}
"""The sets of batches that engines know, which grow, in fewer words than all of their members."""


def engine_report_view(report: ReportDocument) -> Iterator[Section]:
    """Show what an engine's source says of its backends, the plugins beside it, and the plan."""
    engine = report.engine
    assert engine is not None, "the report is on no engine; report_view shows it"
    classes = [backend for backend in report.backends if backend.class_ is not None]
    names = [backend for backend in report.backends if backend.classes is not None]
    plugins = [b for b in report.backends if b.class_ is None and b.classes is None]
    yield Heading(_heading(engine, len(classes), len(names)))
    yield from _tables(classes)
    yield from _section("What depends on what", _dependences(classes))
    yield from _section("Wrappers", ((b.composite, b.name) for b in classes if b.composite))
    yield from names_view(names)
    yield from rules_view(engine)
    if plugins:
        yield Heading("Plugins")
        yield from backends_view(plugins)
    yield from problems_view(report)
    if report.plan is not None:
        yield from plan_view(report.plan)


def _heading(engine: EngineDocument, num_classes: int, num_names: int) -> str:
    read = "as installed" if engine.source == "installed" else f"read from {engine.source}"
    found = f"{_counted(num_classes, 'class', 'classes')}, {_counted(num_names, 'name', 'names')}"
    parsed = f"{engine.num_parsed:,} of {_counted(engine.num_files, 'file', 'files')} parsed"
    return f"{_called(engine)}, {read}: {found}; {parsed}"


def _called(engine: EngineDocument) -> str:
    return " ".join(part for part in (engine.name, engine.version) if part)


def _counted(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"


def _section(heading: str, told: Iterable[tuple[str, str]]) -> Iterator[Section]:
    """Show what is told of whom; those of whom the same is told share a line."""
    owners: dict[str, list[str]] = {}
    for text, owner in told:
        owners.setdefault(text, []).append(owner)
    if owners:
        yield Heading(heading)
        yield Lines(tuple(f"{', '.join(named)}: {text}" for text, named in owners.items()))


def _tables(classes: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show a row for each class; further capabilities only of those that say something of them."""
    told_here = (name for name in CAPABILITIES if name not in _TOLD_BY_NAMES)
    ordered = sorted(told_here, key=lambda name: name not in _FIRST)
    stated = [name for name in ordered if any(_says(backend, name) for backend in classes)]
    yield from _counts(classes, [name for name in stated if name in _FIRST])
    num_main = sum(name in _FIRST for name in stated) or _BESIDE_LONG_NAMES
    yield _main_table(classes, stated[:num_main])
    for start in range(num_main, len(stated), _SIDE_BY_SIDE):
        shown = stated[start : start + _SIDE_BY_SIDE]
        rows = [
            (_class_and_place(backend), *(_cell(backend, name) for name in shown))
            for backend in classes
            if any(_says(backend, name) for name in shown)
        ]
        yield Table((_FIRST_COLUMN, *shown), tuple(rows), "names")


def _class_and_place(backend: BackendDocument) -> str:
    """Write a class with its file, which tells it from another of its name."""
    return f"{backend.name.rpartition('.')[2]}\n{file_of(backend.declared_at or '')}".rstrip()


def _counts(classes: Sequence[BackendDocument], shown: Sequence[str]) -> Iterator[Section]:
    if shown:
        yield Lines(tuple(f"{name}: {_count(classes, name)}" for name in shown))


def _count(classes: Sequence[BackendDocument], capability: str) -> str:
    cells = sorted(_cell(backend, capability).replace("\n", " ") for backend in classes)
    counted = Counter(cells)
    return ", ".join(f"{value} {number}" for value, number in counted.most_common())


def _main_table(classes: Sequence[BackendDocument], shown: Sequence[str]) -> Table:
    rows = [
        (
            _class_and_place(backend),
            ", ".join(backend.registered_as or ()),
            *(_cell(backend, name) for name in shown),
        )
        for backend in classes
    ]
    columns = (_FIRST_COLUMN, "registered as", *shown)
    return Table(columns, tuple(rows), "names")


def _says(backend: BackendDocument, capability: str) -> bool:
    said = backend.capabilities.get(capability)
    return said is not None and (said.origin != "undeclared" or said.when is not None)


def _cell(backend: BackendDocument, capability: str) -> str:
    said = backend.capabilities.get(capability)
    if said is None:
        return backend.status
    value = "depends" if said.when else _words(capability, said.value)
    return f"{value}\n(inherited)" if said.origin == "inherited" else value


def _words(capability: str, value: JsonValue) -> str:
    if capability == "graph_replay" and isinstance(value, list):
        return _BATCHES.get(frozenset(map(str, value)), words_of(value))
    return words_of(value)


def _dependences(classes: Sequence[BackendDocument]) -> Iterator[tuple[str, str]]:
    for backend in classes:
        for capability, said in backend.capabilities.items():
            if said.when or said.origin == "conditional":
                place = f" ({file_of(said.declared_at)})" if said.declared_at else ""
                yield f"{capability} {_dependence(capability, said)}{place}", backend.name


def _dependence(capability: str, said: CapabilityDocument) -> str:
    """Tell each value with its condition, in the source's words."""
    cases = [f"{_words(capability, when.value)} where {when.given}" for when in said.when or ()]
    if not cases:
        return f"depends: {said.words}"
    has_base = said.value not in ("depends", "undeclared")
    if has_base:
        cases.append(f"else {_words(capability, said.value)}")
    return f"is {', '.join(cases)}"


def _choices(names: Sequence[BackendDocument]) -> Iterator[tuple[str, str]]:
    """Tell what a name stands for, where that is not one class at all times."""
    for backend in names:
        cases: dict[str | None, dict[str, list[PartDocument]]] = {}
        for part in backend.classes or ():
            cases.setdefault(part.given, {}).setdefault(part.name, []).append(part)
        told = [_chosen(given, classes) for given, classes in cases.items()]
        if told != backend.parts:
            yield from ((text, backend.name) for text in told)


def _chosen(given: str | None, classes: Mapping[str, Sequence[PartDocument]]) -> str:
    named = "; ".join(f"{name}{_places(parts)}" for name, parts in classes.items())
    return named if given is None else f"{named}, where {given}"


def _places(parts: Sequence[PartDocument]) -> str:
    """Tell which uses a class takes; of one that takes the target's, the others' say the rest."""
    if any(part.phases is None and "target" in (part.roles or ["target"]) for part in parts):
        return ""
    return " as " + ", ".join(map(_place, parts))


def _place(part: PartDocument) -> str:
    roles = " and ".join(part.roles or ["anything"])
    return roles if part.phases is None else f"{roles} in {' and '.join(part.phases)}"


def names_view(names: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show the names that do not stand for one class at all times."""
    yield from _section("Names whose class depends on something", _choices(names))


def rules_view(engine: EngineDocument) -> Iterator[Section]:
    """Show what an engine's flags force; nothing where its rules are not known."""
    if engine.rules:
        yield Heading(f"Rules under {_called(engine)}")
        rows = tuple((rule.name, rule.given, rule.reason) for rule in engine.rules)
        yield Table(("rule", "where", "why"), rows)
