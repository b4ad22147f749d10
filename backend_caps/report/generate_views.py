"""A run of prompts as sections: its plan, its first steps, their sums and the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from backend_caps.report import generate_documents as documents
from backend_caps.report.plan_views import mirror_lines
from backend_caps.report.sections import Columns, Heading, Lines, Section, Table, table_of
from backend_caps.report.step_costs import drafts_words, micros
from backend_caps.report.words import counted

_OUTPUTS = 4
"""Outputs that are shown; the document has all of them."""
_TOKENS = 12
"""Tokens that are shown of a prompt or an output."""
_RAN = {"full": ", replayed", "piecewise": ", in pieces", "eager": ""}
"""How a step ran, shown behind its mode."""
_NOTHING = "—"
"""What is shown where a device without streams has nothing to tell."""


def generate_view(generated: documents.GenerateDocument) -> Iterator[Section]:
    """Show prompts running under a plan: step by step, then all together."""
    run, plan = generated.run, generated.plan
    prompts = counted(run.num_prompts, "prompt")
    yield Heading(f"Plan {plan.fingerprint} runs {prompts} on {generated.device}")
    yield Lines((*_what_ran(generated), *mirror_lines(plan)))
    yield from _steps(generated)
    yield Heading("All steps")
    yield Table(("of the run", ""), tuple(_run(generated)))
    yield from graph_modes_view(generated.graphs)
    yield from _outputs(generated.outputs)
    if generated.metrics is not None:
        rows = ((name, f"{value:g}") for name, value in generated.metrics.items())
        yield Heading("Metrics")
        yield Table(("metric", "value"), tuple(rows), cells="names")


def _what_ran(generated: documents.GenerateDocument) -> Iterator[str]:
    made = "a small Llama with random weights, made for this run; its tokens mean nothing"
    yield f"model: {generated.model or made}"
    speculation, simulation = generated.speculation, generated.simulation
    if speculation is not None:
        yield f"drafts: {drafts_words(speculation.drafts)}"
        if speculation.drafts.algorithm != "NGRAM":
            made = "made for this run, of the small Llama's first layer"
            yield f"draft model: {generated.draft_model or made}"
    if simulation is not None:
        yield (
            f"device: simulated on the CPU, its work in the order {simulation.schedule!r}; times "
            "are the simulator's own"
        )
    yield f"backends: {_by_backend(generated.backends)}"
    if speculation is not None and speculation.draft_backends:
        yield f"draft backends: {_by_backend(speculation.draft_backends)}"


def _by_backend(named: Mapping[str, str]) -> str:
    """Name each backend once, with all its places."""
    places: dict[str, list[str]] = {}
    for place, backend in named.items():
        places.setdefault(backend, []).append(place)
    return ", ".join(f"{backend} in {' and '.join(own)}" for backend, own in places.items())


def _steps(generated: documents.GenerateDocument) -> Iterator[Section]:
    steps, num_steps = generated.steps, sum(generated.run.num_steps.values())
    columns = _PLAIN if generated.speculation is None else _drafts(generated.speculation)
    yield Heading("The first steps")
    yield table_of(steps, {**_WHAT, **columns, **_TIMES})
    if num_steps > len(steps):
        yield Lines((f"and {num_steps - len(steps)} more",))


_WHAT: Columns[documents.GenerateStepDocument] = {
    "step": lambda own: str(own.number),
    "mode": lambda own: f"{own.mode}{_RAN[own.graph_mode]}",
    "requests": lambda own: str(own.num_requests),
}
_TIMES: Columns[documents.GenerateStepDocument] = {
    "host µs": lambda own: micros(own.host_us),
    "model µs": lambda own: micros(own.model_us),
    "waited µs": lambda own: micros(own.wait_us),
}
_PLAIN: Columns[documents.GenerateStepDocument] = {
    "tokens": lambda own: str(own.num_tokens),
    "lengths": lambda own: str(own.total_seq_lens),
    "to the host": lambda own: _crossed(own, " bytes (tokens)", " bytes (tokens, lengths)"),
}


def _drafts(speculation: documents.SpeculationDocument) -> Columns[documents.GenerateStepDocument]:
    num_drafts = speculation.drafts.num_draft_tokens - 1

    def accepted(own: documents.GenerateStepDocument) -> str:
        if own.accept_lens is None:
            return _NOTHING
        num_verified = len(own.accept_lens)
        return f"{sum(own.accept_lens) - num_verified} of {num_verified * num_drafts}"

    return {"drafts": accepted, "bytes to host": lambda own: _crossed(own, "", " with lengths")}


def _crossed(own: documents.GenerateStepDocument, tokens: str, with_lengths: str) -> str:
    if own.bytes_to_host is None:
        return _NOTHING
    return f"{own.bytes_to_host}{with_lengths if own.waits_for_lengths else tokens}"


def _run(generated: documents.GenerateDocument) -> Iterator[tuple[str, str]]:
    run, speculation, plan = generated.run, generated.speculation, generated.plan
    rate = run.num_made / run.seconds if run.seconds > 0 else 0.0
    prompts = counted(run.num_prompts, "prompt")
    in_steps = f"in {counted(sum(run.num_steps.values()), 'step')}"
    room = f"{counted(run.max_total_tokens, 'token')} in pages of {run.page_size}"
    yield "tokens", f"{run.num_made} made of {run.num_prompt_tokens} in {prompts}"
    yield "speed", f"{rate:.0f} tokens/s; {run.host_us:.0f} µs of host time a step around the model"
    yield from _accepted(speculation)
    yield "steps", ", ".join(f"{count} {mode}" for mode, count in run.num_steps.items())
    yield "graphs", _graphs(run)
    if any(own.in_halves is not None for own in generated.graphs.phases):
        yield "halves", f"{sum(run.num_in_halves.values())} {in_steps}"
    yield "graph memory", _graph_memory(generated.graphs)
    yield "KV cache", f"{room}; {counted(run.num_retracted, 'request')} retracted"
    if run.planned_waits is None:
        yield "planned waits", _NOTHING
    elif speculation is None:
        yield "planned waits", f"{run.planned_waits} {in_steps}"
    else:
        for_lengths = f"of which {speculation.planned_waits_for_lengths} for lengths"
        yield "planned waits", f"{run.planned_waits} {in_steps}, {for_lengths}"
    if speculation is not None and speculation.counted_waits is not None:
        yield "counted waits", f"{speculation.counted_waits} {in_steps}"
    crossed = f"{run.bytes_to_host} to the host, {run.bytes_to_device} to the device"
    yield "bytes", _NOTHING if run.bytes_to_host is None else crossed
    yield "overlap", _overlap(generated)
    if generated.simulation is not None:
        yield "hidden syncs", _hidden_syncs(generated.simulation)
    if generated.differs_from_plain is not None:
        others = ", ".join(str(place + 1) for place in generated.differs_from_plain)
        answer = f"other tokens of prompts {others}" if others else "the same tokens"
        yield "beside the plain loop", answer
    yield "plan", f"{plan.fingerprint} under the rules of {plan.rules_words}"


def _graphs(run: documents.RunDocument) -> str:
    num_steps = sum(run.num_steps.values())
    replayed = f"{num_steps - sum(run.num_eager.values())} of {counted(num_steps, 'step')} replayed"
    num_in_pieces = sum(run.num_in_pieces.values())
    pieces = f", {num_in_pieces} of them in pieces" if num_in_pieces else ""
    modes: dict[str, list[str]] = {}
    for mode, why in run.eager_because.items():
        modes.setdefault(why, []).append(mode)
    eager = [f"eager {' and '.join(own)}: {why}" for why, own in modes.items()]
    return "\n".join((f"{replayed}{pieces}", *eager))


def _graph_memory(graphs: documents.GraphsDocument) -> str:
    if not graphs.num_graphs:
        return "none: nothing was captured"
    pool, static = (size_words(each) for each in (graphs.pool_bytes, graphs.static_bytes))
    return f"{pool} in the pool of {counted(graphs.num_graphs, 'graph')}, {static} beside it"


def size_words(num_bytes: int) -> str:
    """Write bytes in the largest unit that there is one of."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return counted(num_bytes, "byte")


def graph_modes_view(graphs: documents.GraphsDocument) -> Iterator[Section]:
    """Show how batches run: what is supported, requested and effective, and why."""
    yield Heading("How batches run")
    yield table_of(graphs.phases, _PHASES)
    asked = [own for own in graphs.phases if own.in_halves is not None]
    if asked:
        yield Heading("Two-batch overlap")
        yield table_of(asked, _HALVES)


def _because(phase: documents.PhaseGraphsDocument) -> str:
    refused = [f"not {mode}: {', '.join(why)}" for mode, why in phase.refused.items()]
    return "\n".join(refused or phase.supported[phase.effective].because)


_PHASES: Columns[documents.PhaseGraphsDocument] = {
    "phase": lambda own: own.name,
    "supported": lambda own: ", ".join(m for m, each in own.supported.items() if each.supported),
    "requested": lambda own: f"{own.requested}: {own.requested_because}",
    "effective": lambda own: own.effective,
    "because": _because,
}
_HALVES: Columns[documents.PhaseGraphsDocument] = {
    "phase": lambda own: own.name,
    "halves": lambda own: "yes" if own.in_halves else "no",
    "because": lambda own: own.in_halves_because,
}


def _accepted(speculation: documents.SpeculationDocument | None) -> Iterator[tuple[str, str]]:
    if speculation is not None and speculation.accept_length is not None:
        verified = counted(speculation.num_verified, "verify", "verifies")
        drafts = counted(speculation.num_drafts, "draft")
        given = f"{speculation.accept_length:.2f} tokens a verify, its own one included"
        yield "accepted", f"{given}: {speculation.num_accepted} of {drafts} in {verified}"


def _hidden_syncs(simulation: documents.SimulationDocument) -> str:
    if not simulation.hidden_syncs:
        return "none: no operator of a step made the host wait"
    places = Counter(simulation.hidden_syncs)
    return "\n".join((str(places.total()), *(f"{n} of {place}" for place, n in places.items())))


def _overlap(generated: documents.GenerateDocument) -> str:
    run = generated.run
    if not run.overlap:
        return "off: --disable-overlap-schedule"
    if run.overlap_ratio is None:
        return f"on; {generated.device} has no streams, so a step is done when its launch returns"
    return f"on; in {run.overlap_ratio:.0%} of the time in flight the host did not wait"


def _outputs(outputs: Sequence[documents.OutputDocument]) -> Iterator[Section]:
    yield Heading("Outputs")
    columns: Columns[documents.OutputDocument] = {
        "prompt": lambda own: _tokens(own.prompt),
        "output": lambda own: _tokens(own.output),
        "ended by": lambda own: own.finish_reason,
    }
    yield table_of(outputs[:_OUTPUTS], columns)
    if len(outputs) > _OUTPUTS:
        yield Lines((f"and {len(outputs) - _OUTPUTS} more; --format json has all of them",))


def _tokens(tokens: Sequence[int]) -> str:
    shown = ", ".join(map(str, tokens[:_TOKENS]))
    return shown if len(tokens) <= _TOKENS else f"{shown} … ({len(tokens)})"
