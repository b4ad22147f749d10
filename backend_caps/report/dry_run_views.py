"""A dry run as sections: what was decided, what the steps did, and how the ranks agreed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias, TypeVar

from backend_caps.report import dry_run_documents as documents
from backend_caps.report.generate_views import graph_modes_view, size_words
from backend_caps.report.launch_views import launch_view
from backend_caps.report.plan_views import flips_view, mirror_lines, plan_problems_view
from backend_caps.report.sections import Heading, Lines, Section, Table

_NOTHING = "—"
"""What is shown where nothing is measured."""
_TARGETS = ("prefill", "decode", "verify")
"""The phases whose forwards are the target's: one in each step."""
_SHOWN = 8
"""Lines of waits that are shown; the document has all of them."""
_Part = TypeVar("_Part", documents.PhaseRunDocument, documents.StepKindDocument)
_Counted = TypeVar("_Counted")
Figure: TypeAlias = Callable[[_Counted], float | None]
Figures: TypeAlias = tuple[str | None, tuple[str, ...]]
"""A row, and before it the stand-ins in what it counts; None where none ran."""


_FORWARDS: Mapping[str, Figure[documents.PhaseRunDocument]] = {
    "forwards": lambda own: own.num_forwards or None,
    "replayed": lambda own: own.num_full + own.num_piecewise if own.num_forwards else None,
    "host waits": lambda own: own.host_waits,
    "bytes to host": lambda own: own.bytes_to_host,
    "bytes to device": lambda own: own.bytes_to_device,
}
_STEPS: Mapping[str, Figure[documents.StepKindDocument]] = {
    "steps": lambda own: own.num_steps,
    "replayed": lambda own: own.num_replayed,
    "mean requests": lambda own: own.mean_requests,
    "tokens made": lambda own: own.num_made,
}
_PLANNED: Mapping[str, Figure[documents.StepKindDocument]] = {
    "planned waits for lengths": lambda own: own.waits_for_lengths,
    "planned bytes to host": lambda own: own.planned_bytes_to_host,
}
_TIMES: Mapping[str, Figure[documents.StepKindDocument]] = {
    "median µs": lambda own: own.median_us,
    "p95 µs": lambda own: own.p95_us,
}
_MEMORY = {
    "KV cache": "kv_cache_bytes",
    "KV cache of drafts": "draft_kv_cache_bytes",
    "page table": "page_table_bytes",
    "graphs, their pool": "graph_pool_bytes",
    "graphs, beside it": "graph_static_bytes",
}


def dry_run_view(document: documents.DryRunDocument) -> Iterator[Section]:
    """Show the decision, the run, and what was not as decided."""
    yield from _decision(document)
    if document.agreement is not None:
        yield from _agreement(document.agreement)
    yield from _run(document)
    yield from _found(document)


def _decision(document: documents.DryRunDocument) -> Iterator[Section]:
    plan = document.plan
    yield Heading(f"Plan {plan.fingerprint} under the rules of {plan.rules_words}")
    ends = (f"{phase} {own.value}" for phase, own in document.shared_reads_end.items())
    idle = [own.effect for own in document.shared_reads_end.values() if own.effect]
    effect = f" ({idle[0]})" if idle else ""
    yield Lines(
        (
            *(choice.text for choice in plan.choices or ()),
            *mirror_lines(plan),
            f"barrier: shared reads end in {', '.join(ends)}{effect}",
        )
    )
    if plan.launch is not None:
        yield from launch_view(plan.launch)
    yield from plan_problems_view(plan)
    yield from flips_view([flip for flip in plan.flips if flip.capability in plan.server])


def _agreement(agreement: documents.AgreementDocument) -> Iterator[Section]:
    hosts = agreement.hosts
    yield Heading(f"{len(hosts)} ranks agreed")
    yield Lines(tuple(_agreed(agreement)))
    if agreement.joined:
        rows = (
            (
                own.capability if own.phase is None else f"{own.capability} in {own.phase}",
                own.joint,
                "\n".join(f"{value} on {_ranks(ranks)}" for value, ranks in own.own.items()),
            )
            for own in agreement.joined
        )
        yield Table(("joined", "all have", "had decided"), tuple(rows))


def _agreed(agreement: documents.AgreementDocument) -> Iterator[str]:
    hosts = agreement.hosts
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, own in enumerate(hosts) if own == host]
        yield f"{_ranks(ranks)} on {host}"
    slowest = f"{agreement.seconds:.2f} s on the slowest rank, its own decision included"
    yield f"in {agreement.rounds} rounds; {slowest}"
    yield f"equal: {', '.join(agreement.equal)}"
    if not agreement.joined:
        yield "joined: nothing, all had decided the same"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _run(document: documents.DryRunDocument) -> Iterator[Section]:
    ranks = document.ranks
    of_ranks = f" of each of {len(ranks)} ranks" if len(ranks) > 1 else ""
    yield Heading(f"{document.num_steps} steps{of_ranks} on {document.device}")
    yield Lines(tuple(_what_ran(document)))
    sizes = tuple((own.flag, own.server, own.here) for own in document.sizes)
    yield Table(("size", "server", "here"), sizes)
    others = [own.flag for own in document.sizes if not own.is_servers]
    if others:
        yield Lines((f"not as on the server, for a run here is small: {', '.join(others)}",))
    yield from graph_modes_view(document.graphs)
    phases = [own for rank in ranks for own in rank.phases]
    rows = [*_rows("phase", phases, _FORWARDS)]
    yield from _by_code("What forwards did", ("phase", *_FORWARDS), rows)
    yield Lines(tuple(_notes(document)))
    yield from _kinds(ranks)
    memory = [*_memory([own.memory for own in ranks])]
    yield from _by_code("What it took of the device's memory", ("memory", "size"), memory)


def _by_code(title: str, columns: Sequence[str], rows: Sequence[Figures]) -> Iterator[Section]:
    """Show figures, those that rest on another's code in a table that says so."""
    for code in dict.fromkeys(own for own, _ in rows):
        named = "" if code is None else f", with {code}"
        yield Heading(f"{title}{named}")
        same = tuple(cells for own, cells in rows if own == code)
        yield Table(tuple(columns), same, cells="names")


def _what_ran(document: documents.DryRunDocument) -> Iterator[str]:
    if document.model is None:
        yield "model: a small Llama with random weights, made for this run; no token is served"
    else:
        yield f"model: {document.model}"
    yield f"FutureMap: host_seq_lens {document.future_map}"
    stood_in = groupby(document.stand_ins, key=lambda own: (own.stand_in, own.backend))
    for (name, backend), own in stood_in:
        places = ", ".join(f"{each.role} {each.phase}" for each in own)
        yield f"stand-in: {name} in place of {backend}, as {places}"
    for change in document.changes:
        where = "" if change.phase is None else f" in {change.phase}"
        yield (
            f"not as decided, with the stand-in: {change.capability}{where} is {change.here}, and "
            f"was decided to be {change.decided}"
        )
    if document.idle_stand_ins:
        names = ", ".join(document.idle_stand_ins)
        yield f"no need of {names}: where it would stand in, each backend runs itself"
    yield from (f"left out: {own}" for own in document.left_out)


def _rows(
    name: str, parts: Sequence[_Part], columns: Mapping[str, Figure[_Part]]
) -> Iterator[Figures]:
    """Write a row for each name that parts of ranks have, with a figure for each column."""
    for value in dict.fromkeys(getattr(own, name) for own in parts):
        same: list[_Part] = [own for own in parts if getattr(own, name) == value]
        yield same[0].stand_in, (value, *(_of(same, figure) for figure in columns.values()))


def _of(parts: Iterable[_Counted], figure: Figure[_Counted]) -> str:
    """Write a figure of all ranks: one number where they have the same, else the range."""
    found = [value for own in parts if (value := figure(own)) is not None]
    if not found:
        return _NOTHING
    least, most = _number(min(found)), _number(max(found))
    return least if least == most else f"{least} to {most}"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _notes(document: documents.DryRunDocument) -> Iterator[str]:
    yield (
        "around: what is no forward; each step sends its batch from there to the device, and waits "
        "once for its tokens"
    )
    yield from _ahead(document.ranks)
    waits: dict[tuple[str, str], list[int]] = {}
    for rank in document.ranks:
        for own in rank.phases:
            for what, count in (own.waits or {}).items():
                waits.setdefault((own.phase, what), []).append(count)
    for (phase, what), counts in [*waits.items()][:_SHOWN]:
        times = "time" if {*counts} == {1} else "times"
        yield f"waited in {phase}: {_of(counts, float)} {times} for {what}"
    yield from _eager(document)
    hidden = [what for rank in document.ranks for what in rank.hidden_syncs or ()]
    yield from (f"hidden: {what} made the host wait" for what in dict.fromkeys(hidden))
    if all(own.host_waits is None for rank in document.ranks for own in rank.phases):
        yield "waits and bytes of forwards are counted on the simulated device alone"
    if all(own.median_us is None for rank in document.ranks for own in rank.steps):
        yield "no times: on the simulated device they would be the simulator's"


def _ahead(ranks: Sequence[documents.RankRunDocument]) -> Iterator[str]:
    """Say why there are more forwards of the target than steps."""
    runs = [sum(own.num_forwards for own in rank.phases if own.phase in _TARGETS) for rank in ranks]
    more = _of(zip(runs, ranks, strict=True), lambda own: own[0] - own[1].num_steps)
    if more != "0":
        yield (
            f"{more} more of the target's forwards than steps: with overlap, the next step's is "
            "enqueued before a step's result is there, and counted with all that belongs to it"
        )


def _eager(document: documents.DryRunDocument) -> Iterator[str]:
    """Say what kept forwards from graphs, where the table of graph modes does not."""
    reported = {own.name for own in document.graphs.phases if own.effective == "eager"}
    places: dict[str, list[str]] = {}
    for rank in document.ranks:
        for own in rank.phases:
            for why in () if own.phase in reported else own.eager_because:
                if own.phase not in (named := places.setdefault(why, [])):
                    named.append(own.phase)
    for why, named in places.items():
        yield f"eager in {', '.join(named)}: {why}"


def _kinds(ranks: Sequence[documents.RankRunDocument]) -> Iterator[Section]:
    """Show steps by their kind; times where there are any."""
    steps = [own for rank in ranks for own in rank.steps]
    columns = dict(_STEPS)
    if any(own.median_us is not None for own in steps):
        is_planned = any(own.planned_bytes_to_host is not None for own in steps)
        columns |= {**(_PLANNED if is_planned else {}), **_TIMES}
    rows = [*_rows("kind", steps, columns)]
    yield from _by_code("What steps did", ("kind", *columns), rows)


def _memory(memories: Sequence[documents.RunMemoryDocument]) -> Iterator[Figures]:
    for name, field in _MEMORY.items():
        found = sorted({getattr(own, field) for own in memories})
        words = " to ".join(size_words(own) for own in dict.fromkeys((found[0], found[-1])))
        yield memories[0].stand_in, (name, words)


def verdict(document: documents.DryRunDocument) -> str:
    """Say in a sentence whether it ran as it was decided."""
    found = {(own.code, own.phase, own.message) for r in document.ranks for own in r.findings}
    if found:
        return f"not as it was decided in {len(found)} {'way' if len(found) == 1 else 'ways'}"
    stand_in = document.ranks[0].memory.stand_in
    with_ = "" if stand_in is None else f", with {stand_in}"
    strict = "; --strict refuses the plan's problems" if document.status else ""
    return f"it ran as it was decided{with_}{strict}"


def _found(document: documents.DryRunDocument) -> Iterator[Section]:
    found = [(rank.rank, own) for rank in document.ranks for own in rank.findings]
    if not found:
        yield Lines((verdict(document),))
        return
    yield Heading("Not as decided")
    rows: dict[tuple[str, ...], list[int]] = {}
    for rank, own in found:
        text = own.message if own.stand_in is None else f"{own.message} (with {own.stand_in})"
        rows.setdefault((own.code, own.phase or "", text), []).append(rank)
    if len(document.ranks) == 1:
        yield Table(("finding", "phase", "what it is"), tuple(rows))
    else:
        table = tuple((*row, _ranks(ranks)) for row, ranks in rows.items())
        yield Table(("finding", "phase", "what it is", "where"), table)
