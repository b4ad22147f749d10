"""A report, a plan and an explanation as sections: one content for every textual format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backend_caps.report.documents import (
    BackendDocument,
    CapabilityDocument,
    CauseDocument,
    ConditionDocument,
    FlipDocument,
    PlanDocument,
    RelayDocument,
    ReportDocument,
    StepDocument,
    ValueDocument,
)
from backend_caps.report.evidence_views import evidence_view, mark_of
from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.tries import tries
from backend_caps.report.words import decided_by, file_of, places_of, who, words_of

_NOT_TRUSTED = frozenset({"inherited", "missing", "undecided", "unverified"})
"""Origins of which nobody knows that the value is really so."""
_SIDE_BY_SIDE = 3
"""Backends in one table: as many as a terminal of 100 columns holds."""


def report_view(report: ReportDocument) -> Iterator[Section]:
    """Show what is installed, what is wrong with it, and the plan."""
    yield Heading("Backends")
    if not report.backends:
        yield Lines(
            (
                "No installed distribution declares a backend.",
                "Install a plugin, or name the folder that one is in with --path.",
            )
        )
    else:
        yield from backends_view(report.backends)
    yield from problems_view(report)
    if report.plan is not None:
        yield from plan_view(report.plan)


def backends_view(backends: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show backends side by side with what they declare."""
    yield _installed(backends)
    yield from _matrix([b for b in backends if b.status == "ok"])
    yield from _conditions(backends)
    yield from _composites(backends)
    yield from _adapters(backends)
    yield from evidence_view(backends)


def _installed(backends: Sequence[BackendDocument]) -> Table:
    columns = ("backend", "status", "distribution", "version", "declared at")
    rows = [
        (b.name, b.status, b.distribution or "", b.version or "", file_of(b.declared_at or ""))
        for b in backends
    ]
    return Table(columns, tuple(rows))


def _matrix(backends: Sequence[BackendDocument]) -> Iterator[Section]:
    """Show what backends declare side by side; what none of them declares is only named."""
    for start in range(0, len(backends), _SIDE_BY_SIDE):
        shown = backends[start : start + _SIDE_BY_SIDE]
        names = shown[0].capabilities
        silent = [n for n in names if all(_is_silent(b.capabilities[n]) for b in shown)]
        rows = [
            (name, *(_cell(backend.capabilities[name]) for backend in shown))
            for name in names
            if name not in silent
        ]
        owners = [backend.name for backend in shown]
        if rows:
            yield Table(("capability", *owners), tuple(rows))
        if silent:
            yield Lines((f"undeclared by {', '.join(owners)}: {', '.join(silent)}",))


def _is_silent(said: CapabilityDocument) -> bool:
    return said.origin == "undeclared" and not said.when


def _cell(said: CapabilityDocument) -> str:
    return words_of(said.value) + (" *" if said.when else "") + mark_of(said)


def _conditions(backends: Sequence[BackendDocument]) -> Iterator[Lines]:
    lines = [
        f"* {backend.name}: {name} is {words_of(when.value)} where {when.given}: {when.reason}"
        for backend, name, _, when in conditions_of(backends)
    ]
    if lines:
        yield Lines(tuple(lines))


def conditions_of(
    backends: Sequence[BackendDocument],
) -> Iterator[tuple[BackendDocument, str, CapabilityDocument, ConditionDocument]]:
    """List the conditions, each with its backend, its capability, and what that says of it."""
    return (
        (backend, name, said, when)
        for backend in backends
        for name, said in backend.capabilities.items()
        for when in said.when or ()
    )


def _composites(backends: Sequence[BackendDocument]) -> Iterator[Lines]:
    lines = [f"{b.name} hands its uses to {', '.join(b.parts)}" for b in backends if b.parts]
    if lines:
        yield Lines(tuple(lines))


def _adapters(backends: Sequence[BackendDocument]) -> Iterator[Lines]:
    lines = [
        f"{backend.name} becomes a backend of {engine} by {place}"
        for backend in backends
        for engine, place in sorted((backend.adapters or {}).items())
    ]
    if lines:
        yield Lines(tuple(lines))


def problems_view(report: ReportDocument) -> Iterator[Section]:
    """Show what is wrong: with a backend, then with what no single one can be blamed for."""
    named = [(backend.name, p) for backend in report.backends for p in backend.problems]
    problems = [*named, *(("", p) for p in report.problems)]
    if problems:
        yield Heading("Problems")
        rows = [(name, p.code, f"{p.message} {p.remedy}") for name, p in problems]
        yield Table(("backend", "problem", "what it is, what to do"), tuple(rows))


def plan_view(plan: PlanDocument) -> Iterator[Section]:
    """Show a plan: each value, what it does, who decided it, and what would change it."""
    yield Heading(f"Plan {plan.fingerprint} under the rules of {plan.rules}")
    yield Lines((*(choice.text for choice in plan.choices or ()), *mirror_lines(plan)))
    yield Table(
        ("server", "value", "effect", "decided by"),
        tuple((n, words_of(v.value), v.effect, decided_by(v)) for n, v in plan.server.items()),
    )
    yield _phases(plan)
    yield from plan_problems_view(plan)
    yield from flips_view([flip for flip in plan.flips if flip.capability in plan.server])


def plan_problems_view(plan: PlanDocument) -> Iterator[Section]:
    """Show what is wrong with a plan, unless its policy is to say nothing."""
    if plan.problems and plan.policy != "quiet":
        yield Heading("Problems of the plan")
        rows = tuple((p.code, f"{p.message} {p.remedy}") for p in plan.problems)
        yield Table(("problem", "what it is, what to do"), rows)


def mirror_lines(plan: PlanDocument) -> tuple[str, ...]:
    """Tell in a line what the host knows of lengths, and in one each who decided it."""
    reasons = _reasons(plan.server["host_seq_lens"])
    return (_headline(plan), *(f"because {why}" for why in reasons))


def _headline(plan: PlanDocument) -> str:
    mirror = plan.server["host_seq_lens"]
    engine = "" if plan.engine is None else f"with {plan.engine}, "
    is_known = {c.origin for c in mirror.causes if c.value == mirror.value} - _NOT_TRUSTED
    verb = "is" if is_known or not engine else "counts as"
    return f"{engine}host_seq_lens {verb} {words_of(mirror.value)} ({mirror.effect})"


def _reasons(mirror: ValueDocument) -> Iterator[str]:
    deciding = [cause for cause in mirror.causes if cause.value == mirror.value]
    told = dict.fromkeys((cause.kind, cause.name, cause.reason) for cause in deciding)
    return (f"{kind} {name}: {reason}" for kind, name, reason in told)


def _phases(plan: PlanDocument) -> Table:
    names = next(iter(plan.phases.values()))
    rows = [(name, *(_of_phase(values[name]) for values in plan.phases.values())) for name in names]
    return Table(("phase", *plan.phases), tuple(rows))


def _of_phase(value: ValueDocument) -> str:
    return words_of(value.value) if value.causes else "not used"


def flips_view(flips: Sequence[FlipDocument]) -> Iterator[Section]:
    """Show what would lead to better values; nothing where nothing would."""
    if flips:
        yield Heading("What would change it")
        rows = [
            (_named(one.name, ", ".join(one.phases)), one.becomes, " ".join(one.remedies))
            for one in tries(flips)
        ]
        yield Table(("capability", "becomes", "all of"), tuple(rows))


def _named(capability: str, phases: str) -> str:
    return f"{capability} in {phases}" if phases else capability


def relay_view(relayed: RelayDocument) -> Iterator[Section]:
    """Show what crossed to the host in each step, or would on an accelerator, and why."""
    num_requests = len(relayed.steps[0].seq_lens)
    yield Heading(f"{len(relayed.steps)} steps of {num_requests} requests on {relayed.device}")
    yield Lines(mirror_lines(relayed.plan))
    rows = [
        (
            str(step.number),
            words_of([*step.input_ids]),
            words_of([*step.seq_lens]),
            _on_the_host(step),
            f"{step.bytes_to_host} bytes" if step.bytes_to_host else "nothing",
        )
        for step in relayed.steps
    ]
    crossed = "crossed" if relayed.has_streams else "would cross"
    columns = ("step", "starts from tokens", "lengths, device", "lengths, host", crossed)
    yield Table(columns, tuple(rows))


def _on_the_host(step: StepDocument) -> str:
    if step.seq_lens_cpu is not None:
        return words_of([*step.seq_lens_cpu])
    bound = step.seq_lens_cpu_upper_bound
    return "none" if bound is None else f"at most {words_of([*bound])}"


def explain_view(
    plan: PlanDocument, capabilities: Sequence[str], phase: str | None
) -> Iterator[Section]:
    """Show every cause of some values, and what would change them."""
    for name in capabilities:
        if name in plan.server:
            yield from _explained(plan, name, plan.server[name], "")
        for each, values in plan.phases.items():
            if name in values and phase in (None, each) and values[name].causes:
                yield from _explained(plan, name, values[name], each)
            elif name in values and phase == each:
                yield Lines((f"{name} in {each}: no backend is used there.",))
        asked = (None, *plan.phases) if phase is None else (None, phase)
        yield from flips_view(
            [flip for flip in plan.flips if flip.capability == name and flip.phase in asked]
        )


def _explained(
    plan: PlanDocument, name: str, value: ValueDocument, phase: str
) -> Iterator[Section]:
    effect = f" ({value.effect})" if value.effect else ""
    engine = "" if plan.engine is None else f" with {plan.engine}"
    yield Heading(f"{_named(name, phase)}{engine} = {words_of(value.value)}{effect}")
    yield causes_table(value)
    is_missing = any(c.origin == "missing" for c in value.causes)
    remedies = [p.remedy for p in plan.problems if is_missing and p.code == "backend-missing"]
    if remedies:
        yield Lines(tuple(dict.fromkeys(remedies)))


def causes_table(value: ValueDocument) -> Table:
    """Show every cause of a value; those that name the same and state the same share a row."""
    groups: dict[tuple[str, ...], list[CauseDocument]] = {}
    for c in value.causes:
        groups.setdefault((who(c), f"{words_of(c.value)} ({c.origin})"), []).append(c)
    rows = [(cause, stated, _story(same)) for (cause, stated), same in groups.items()]
    return Table(("cause", "value", "why"), tuple(rows))


def _story(causes: Sequence[CauseDocument]) -> str:
    """Tell in whose words, where it counts, and where it stands in a source file."""
    reasons = "; ".join(dict.fromkeys(" ".join(cause.reason.split()) for cause in causes))
    places = places_of(causes)
    sources = ", ".join(dict.fromkeys(file_of(c.source) for c in causes if c.source))
    lines = (reasons, places and f"as {places}", sources and f"in {sources}")
    return "\n".join(line for line in lines if line)
