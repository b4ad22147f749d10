"""Plans as sections: a plan, an explanation, a selection, and relayed steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from backend_caps.report import plans, words
from backend_caps.report.launch_views import launch_view, start_lines
from backend_caps.report.sections import (
    Columns,
    Heading,
    Lines,
    Opened,
    Section,
    Table,
    some_lines,
    table_of,
    titled_table,
)
from backend_caps.resolution.flips import GRAPHS, STARTS

_NOT_TRUSTED = frozenset({"inherited", "missing", "undecided", "unverified"})
"""Origins of values that count as the worst because they are not known."""
_NO_USE = (
    "No flag that was asked puts a backend to use on this server: other flags go before it, or it "
    "is for drafts and --speculative-algorithm is not given."
)


def plan_view(plan: plans.PlanDocument) -> Iterator[Section]:
    """Show a plan: each value, its effect, what decided it, and what would change it."""
    yield Heading(f"Plan {plan.fingerprint} under the rules of {plan.rules_words}")
    yield Lines((*(choice.text for choice in plan.choices or ()), *mirror_lines(plan)))
    if plan.launch is not None:
        yield from launch_view(plan.launch)
    yield Table(
        ("server", "value", "effect", "decided by"),
        tuple(
            (n, words.value_words(v), v.effect, words.decided_by(v)) for n, v in plan.server.items()
        ),
    )
    yield _phases(plan)
    yield from plan_problems_view(plan)
    yield from flips_view([flip for flip in plan.flips if flip.capability in plan.server])


def plan_problems_view(plan: plans.PlanDocument) -> Iterator[Section]:
    """Show what is wrong with a plan, unless its policy is quiet."""
    problems = () if plan.policy == "quiet" else plan.problems
    rows = [(p.code, f"{p.message} {p.remedy}") for p in problems]
    return titled_table("Problems of the plan", ("problem", "what it is, what to do"), rows)


def mirror_lines(plan: plans.PlanDocument) -> tuple[str, ...]:
    """Write the value of `host_seq_lens`, then each cause that decided it."""
    mirror = plan.server["host_seq_lens"]
    engine = "" if plan.engine is None else f"with {plan.engine}, "
    is_known = {cause.origin for cause in words.deciding(mirror)} - _NOT_TRUSTED
    verb = "is" if is_known or not engine else "counts as"
    headline = f"{engine}host_seq_lens {verb} {words.value_words(mirror)} ({mirror.effect})"
    reasons = dict.fromkeys((c.kind, c.name, c.reason) for c in words.deciding(mirror))
    return (headline, *(f"because {kind} {name}: {reason}" for kind, name, reason in reasons))


def _phases(plan: plans.PlanDocument) -> Table:
    names = next(iter(plan.phases.values()))
    rows = [
        (name, *(words.use_words(values[name]) for values in plan.phases.values()))
        for name in names
    ]
    return Table(("phase", *plan.phases), tuple(rows))


def flips_view(flips: Iterable[plans.FlipDocument]) -> Iterator[Section]:
    """Show the changes that would lead to better values, if there are any."""
    rows = [
        (_flip_name(alike), words.words_of(alike[0].becomes), " ".join(alike[0].remedies))
        for alike in words.tries(flips)
    ]
    return titled_table("What would change it", ("capability", "becomes", "all of"), rows)


def _flip_name(alike: Sequence[plans.FlipDocument]) -> str:
    phases = ", ".join(flip.phase for flip in alike if flip.phase)
    return f"{alike[0].capability} in {phases}" if phases else alike[0].capability


def relay_view(relayed: plans.RelayDocument) -> Iterator[Section]:
    """Show what crossed to the host in each step, or would on an accelerator, and why."""
    num_requests = len(relayed.steps[0].seq_lens)
    yield Heading(f"{len(relayed.steps)} steps of {num_requests} requests on {relayed.device}")
    yield Lines(mirror_lines(relayed.plan))
    columns: Columns[plans.StepDocument] = {
        "step": lambda step: str(step.number),
        "starts from tokens": lambda step: words.words_of([*step.input_ids]),
        "lengths, device": lambda step: words.words_of([*step.seq_lens]),
        "lengths, host": _on_the_host,
        "crossed" if relayed.has_streams else "would cross": lambda step: (
            f"{step.bytes_to_host} bytes" if step.bytes_to_host else "nothing"
        ),
    }
    yield table_of(relayed.steps, columns)


def _on_the_host(step: plans.StepDocument) -> str:
    if step.seq_lens_cpu is not None:
        return words.words_of([*step.seq_lens_cpu])
    bound = step.seq_lens_cpu_upper_bound
    return "none" if bound is None else f"at most {words.words_of([*bound])}"


def explain_view(
    plan: plans.PlanDocument, capabilities: Sequence[str], phase: str | None
) -> Iterator[Section | Opened]:
    """Show what keeps a server from starting, then causes of values, and what would change them."""
    if plan.launch is not None and not plan.launch.starts:
        yield Lines(tuple(start_lines(plan.launch)))
        yield from flips_view([flip for flip in plan.flips if flip.capability == STARTS])
    for name in capabilities:
        yield Opened(name=name, phase=phase)
        if name in plan.server:
            yield from _explained(plan, name, plan.server[name], "")
        for each, values in plan.phases.items():
            if name in values and phase in (None, each) and values[name].causes:
                yield from _explained(plan, name, values[name], each)
            elif name in values and phase == each:
                yield Lines((f"{name} in {each}: no backend is used there.",))
        shown_phases = (None, *plan.phases) if phase is None else (None, phase)
        names = {name, GRAPHS} if name == "graph_replay" else {name}
        yield from flips_view(
            [flip for flip in plan.flips if flip.capability in names and flip.phase in shown_phases]
        )


def _explained(
    plan: plans.PlanDocument, name: str, value: plans.ValueDocument, phase: str
) -> Iterator[Section]:
    effect = f" ({value.effect})" if value.effect else ""
    engine = "" if plan.engine is None else f" with {plan.engine}"
    place = f"{name} in {phase}" if phase else name
    yield Heading(f"{place}{engine} = {words.value_words(value)}{effect}")
    yield causes_table(value)
    is_missing = any(c.origin == "missing" for c in value.causes)
    remedies = [p.remedy for p in plan.problems if is_missing and p.code == "backend-missing"]
    yield from some_lines(dict.fromkeys(remedies))


def causes_table(value: plans.ValueDocument) -> Table:
    """Show every cause of a value; those that name the same and state the same share a row."""
    groups = words.grouped(((words.full_name(c), words.cause_words(c)), c) for c in value.causes)
    rows = tuple((*stated, _story(same)) for stated, same in groups.items())
    return Table(("cause", "value", "why"), rows)


def _story(causes: Sequence[plans.CauseDocument]) -> str:
    """Write the reasons of causes, the uses where they count, and their source files."""
    reasons = "; ".join(dict.fromkeys(" ".join(cause.reason.split()) for cause in causes))
    places = words.places_of(causes)
    sources = ", ".join(dict.fromkeys(words.file_of(c.source) for c in causes if c.source))
    lines = (reasons, places and f"as {places}", sources and f"in {sources}")
    return "\n".join(line for line in lines if line)


def selection_view(selection: plans.SelectionDocument) -> Iterator[Section]:
    """Show each flag's candidates, and everything that speaks against them."""
    if not selection.choices:
        yield Lines((_NO_USE,))
    for choice in selection.choices:
        yield Heading(choice.text)
        if choice.candidates:
            yield table_of(choice.candidates, _CANDIDATES)
        else:
            yield Lines(("Install a plugin, or name the folder that one is in with --path.",))
        yield from _rejected(choice)
        if selection.policy != "quiet":
            yield from _unchecked(choice)


_CANDIDATES: Columns[plans.CandidateDocument] = {
    "backend": lambda candidate: candidate.name,
    "fits": lambda candidate: {None: "no", 1: "chosen"}.get(candidate.rank, "yes"),
    "priority": lambda candidate: str(candidate.priority),
    "host_seq_lens": lambda candidate: candidate.host_seq_lens or "",
    "with it": lambda candidate: candidate.costs,
}


def _rejected(choice: plans.ChoiceDocument) -> Iterator[Section]:
    rows = [
        (reason.code, candidate.name, reason.actual or "", reason.needed or "", _remedy(reason))
        for candidate in choice.candidates
        for reason in candidate.reasons
    ]
    columns = ("reason", "backend", "is", "needs", "what to do")
    return titled_table("What speaks against those that do not fit", columns, rows, "names")


def _remedy(reason: plans.ReasonDocument) -> str:
    """Write the remedy; without an actual and a needed value, the message too."""
    has_values = reason.actual is not None and reason.needed is not None
    return reason.remedy if has_values else f"{reason.message} {reason.remedy}"


def _unchecked(choice: plans.ChoiceDocument) -> Iterator[Section]:
    rows = [
        (candidate.name, ", ".join(dict.fromkeys(reason.code for reason in candidate.unchecked)))
        for candidate in choice.candidates
        if candidate.unchecked
    ]
    yield from titled_table("Not checked, so not refused", ("backend", "not checked"), rows)
    if rows and choice.unknown_facts:
        yield Lines((f"not known: {', '.join(choice.unknown_facts)}; --fact NAME=VALUE tells one",))


def engine_selection_view(selection: plans.EngineSelectionDocument) -> Iterator[Section]:
    """Show what the engine takes by itself, and each backend that could take its place."""
    takes = selection.default or "no backend by itself"
    yield Heading(f"{selection.engine} takes {takes} for {selection.model} on {selection.machine}")
    if selection.why_none is not None:
        yield Lines((f"because {selection.why_none}",))
    can = [each for each in selection.candidates if each.starts]
    if can:
        yield table_of(can, _ENGINE_CANDIDATES)
        yield Lines((_ACCEPTED,))
    rows = [
        (
            each.name,
            "no" if each.starts is False else "not known",
            str(each.why) if each.at is None else f"{each.why} ({each.at})",
        )
        for each in selection.candidates
        if not each.starts
    ]
    yield from titled_table("Those that do not start", ("backend", "starts", "because"), rows)


_ACCEPTED = (
    "These are accepted by the engine's arguments, registry and draft factory. Whether a backend's "
    "packages are installed, and what its constructor checks, is found when the server starts."
)
_ENGINE_CANDIDATES: Columns[plans.EngineCandidateDocument] = {
    "backend": lambda each: f"{each.name} (default)" if each.is_default else each.name,
    "host_seq_lens": lambda each: each.host_seq_lens or "not known",
    "with it": lambda each: each.costs or "",
    "overlap": lambda each: "yes" if each.has_overlap else "no",
    "decode graphs": lambda each: "yes" if each.has_graphs else "no",
    "page size": lambda each: str(each.page_size or ""),
}
