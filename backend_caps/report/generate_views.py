"""A run of prompts as sections: its plan, its first steps, their sums and the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from backend_caps.report.generate_documents import (
    GenerateDocument,
    GenerateStepDocument,
    GraphsDocument,
    OutputDocument,
    PhaseGraphsDocument,
    RunDocument,
    SimulationDocument,
    SpeculationDocument,
)
from backend_caps.report.plan_views import mirror_lines
from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.step_costs import drafts_words
from backend_caps.report.words import counted

_OUTPUTS = 4
"""Outputs that are shown; the document has all of them."""
_TOKENS = 12
"""Tokens that are shown of a prompt or an output."""
_RAN = {"full": ", replayed", "piecewise": ", in pieces", "eager": ""}
"""What is said of a step beside its mode."""
_NOTHING = "—"
"""What is shown where a device without streams has nothing to tell."""


def generate_view(generated: GenerateDocument) -> Iterator[Section]:
    """Show prompts running under a plan: step by step, then all together."""
    run, plan = generated.run, generated.plan
    prompts = counted(run.num_prompts, "prompt")
    yield Heading(f"Plan {plan.fingerprint} runs {prompts} on {generated.device}")
    yield Lines(
        (
            *(_model(generated), *_drafts(generated), *_device(generated), _backends(generated)),
            *_draft_backends(generated),
            *mirror_lines(plan),
        )
    )
    yield from _steps(generated)
    yield Heading("All steps")
    yield Table(("of the run", ""), tuple(_run(generated)))
    yield from graph_modes_view(generated.graphs)
    yield from _outputs(generated.outputs)
    if generated.metrics is not None:
        yield Heading("Metrics")
        rows = tuple((name, f"{value:g}") for name, value in generated.metrics.items())
        yield Table(("metric", "value"), rows, cells="names")


def _model(generated: GenerateDocument) -> str:
    if generated.model is None:
        return (
            "model: a small Llama with random weights, made for this run; its tokens mean nothing"
        )
    return f"model: {generated.model}"


def _drafts(generated: GenerateDocument) -> Iterator[str]:
    if generated.speculation is None:
        return
    drafts = generated.speculation.drafts
    yield f"drafts: {drafts_words(drafts)}"
    if drafts.algorithm == "NGRAM":
        return
    made = "made for this run, of the small Llama's first layer"
    yield f"draft model: {generated.draft_model or made}"


def _draft_backends(generated: GenerateDocument) -> Iterator[str]:
    if generated.speculation is not None and generated.speculation.draft_backends:
        yield f"draft backends: {_by_backend(generated.speculation.draft_backends)}"


def _device(generated: GenerateDocument) -> Iterator[str]:
    if generated.simulation is not None:
        yield (
            f"device: simulated on the CPU, its work in the order "
            f"{generated.simulation.schedule!r}; times are the simulator's own"
        )


def _backends(generated: GenerateDocument) -> str:
    return f"backends: {_by_backend(generated.backends)}"


def _by_backend(named: Mapping[str, str]) -> str:
    """Name each backend once, with all its places."""
    places: dict[str, list[str]] = {}
    for place, backend in named.items():
        places.setdefault(backend, []).append(place)
    return ", ".join(f"{backend} in {' and '.join(own)}" for backend, own in places.items())


def _steps(generated: GenerateDocument) -> Iterator[Section]:
    steps, num_steps = generated.steps, sum(generated.run.num_steps.values())
    yield Heading("The first steps")
    speculation, times = generated.speculation, ("host µs", "model µs", "waited µs")
    columns = ("step", "mode", "requests")
    if speculation is None:
        plain = ("tokens", "lengths", "to the host")
        yield Table((*columns, *plain, *times), tuple(map(_step, steps)))
    else:
        rows = tuple(_drafting_step(step, speculation) for step in steps)
        yield Table((*columns, "drafts", "bytes to host", *times), rows)
    if num_steps > len(steps):
        yield Lines((f"and {num_steps - len(steps)} more",))


def _step(step: GenerateStepDocument) -> tuple[str, ...]:
    what = "tokens, lengths" if step.waits_for_lengths else "tokens"
    crossed = None if step.bytes_to_host is None else f"{step.bytes_to_host} bytes ({what})"
    return (
        *_what(step),
        str(step.num_tokens),
        str(step.total_seq_lens),
        crossed or _NOTHING,
        *_times(step),
    )


def _drafting_step(step: GenerateStepDocument, speculation: SpeculationDocument) -> tuple[str, ...]:
    with_lengths = " with lengths" if step.waits_for_lengths else ""
    crossed = None if step.bytes_to_host is None else f"{step.bytes_to_host}{with_lengths}"
    return (*_what(step), _drafts_of(step, speculation), crossed or _NOTHING, *_times(step))


def _what(step: GenerateStepDocument) -> tuple[str, ...]:
    return str(step.number), f"{step.mode}{_RAN[step.graph_mode]}", str(step.num_requests)


def _times(step: GenerateStepDocument) -> tuple[str, ...]:
    waited = _NOTHING if step.wait_us is None else f"{step.wait_us:.0f}"
    return f"{step.host_us:.0f}", f"{step.model_us:.0f}", waited


def _drafts_of(step: GenerateStepDocument, speculation: SpeculationDocument) -> str:
    """Say how many drafts of a step were accepted."""
    if step.accept_lens is None:
        return _NOTHING
    num_verified = len(step.accept_lens)
    num_drafts = num_verified * (speculation.drafts.num_draft_tokens - 1)
    return f"{sum(step.accept_lens) - num_verified} of {num_drafts}"


def _run(generated: GenerateDocument) -> Iterator[tuple[str, str]]:
    run = generated.run
    rate = run.num_made / run.seconds if run.seconds > 0 else 0.0
    prompts = counted(run.num_prompts, "prompt")
    yield "tokens", f"{run.num_made} made of {run.num_prompt_tokens} in {prompts}"
    yield "speed", f"{rate:.0f} tokens/s; {run.host_us:.0f} µs of host time a step around the model"
    yield from _accepted(generated.speculation)
    yield "steps", ", ".join(f"{count} {mode}" for mode, count in run.num_steps.items())
    yield "graphs", _graphs(run)
    if any(own.in_halves is not None for own in generated.graphs.phases):
        yield "halves", _of_steps(sum(run.num_in_halves.values()), run)
    yield "graph memory", _graph_memory(generated.graphs)
    yield "KV cache", _kv_cache(run)
    yield "planned waits", _planned_waits(run, generated.speculation)
    if generated.speculation is not None and generated.speculation.counted_waits is not None:
        yield "counted waits", _of_steps(generated.speculation.counted_waits, run)
    yield "bytes", _bytes(run)
    yield "overlap", _overlap(generated)
    if generated.simulation is not None:
        yield "hidden syncs", _hidden_syncs(generated.simulation)
    if generated.differs_from_plain is not None:
        yield "beside the plain loop", _beside_plain(generated.differs_from_plain)
    yield "plan", f"{generated.plan.fingerprint} under the rules of {generated.plan.rules}"


def _graphs(run: RunDocument) -> str:
    num_steps = sum(run.num_steps.values())
    replayed = f"{num_steps - sum(run.num_eager.values())} of {counted(num_steps, 'step')} replayed"
    num_in_pieces = sum(run.num_in_pieces.values())
    pieces = f", {num_in_pieces} of them in pieces" if num_in_pieces else ""
    modes: dict[str, list[str]] = {}
    for mode, why in run.eager_because.items():
        modes.setdefault(why, []).append(mode)
    eager = [f"eager {' and '.join(own)}: {why}" for why, own in modes.items()]
    return "\n".join((f"{replayed}{pieces}", *eager))


def _graph_memory(graphs: GraphsDocument) -> str:
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


def graph_modes_view(graphs: GraphsDocument) -> Iterator[Section]:
    """Show how batches run: what is supported, requested and effective, and why."""
    yield Heading("How batches run")
    columns = ("phase", "supported", "requested", "effective", "because")
    yield Table(columns, tuple(map(_phase, graphs.phases)))
    asked = [own for own in graphs.phases if own.in_halves is not None]
    if asked:
        yield Heading("Two-batch overlap")
        yield Table(("phase", "halves", "because"), tuple(map(_halves, asked)))


def _halves(phase: PhaseGraphsDocument) -> tuple[str, ...]:
    return phase.name, "yes" if phase.in_halves else "no", phase.in_halves_because


def _phase(phase: PhaseGraphsDocument) -> tuple[str, ...]:
    supported = ", ".join(mode for mode, own in phase.supported.items() if own.supported)
    because = [f"not {mode}: {', '.join(why)}" for mode, why in phase.refused.items()]
    if not because:
        because = phase.supported[phase.effective].because
    requested = f"{phase.requested}: {phase.requested_because}"
    return phase.name, supported, requested, phase.effective, "\n".join(because)


def _kv_cache(run: RunDocument) -> str:
    room = f"{counted(run.max_total_tokens, 'token')} in pages of {run.page_size}"
    return f"{room}; {counted(run.num_retracted, 'request')} retracted"


def _planned_waits(run: RunDocument, speculation: SpeculationDocument | None) -> str:
    if run.planned_waits is None:
        return _NOTHING
    told = _of_steps(run.planned_waits, run)
    if speculation is None:
        return told
    return f"{told}, of which {speculation.planned_waits_for_lengths} for lengths"


def _of_steps(number: int, run: RunDocument) -> str:
    return f"{number} in {counted(sum(run.num_steps.values()), 'step')}"


def _accepted(speculation: SpeculationDocument | None) -> Iterator[tuple[str, str]]:
    if speculation is None or speculation.accept_length is None:
        return
    verified = counted(speculation.num_verified, "verify", "verifies")
    drafts = counted(speculation.num_drafts, "draft")
    accepted = f"{speculation.num_accepted} of {drafts} in {verified}"
    given = f"{speculation.accept_length:.2f} tokens a verify, its own one included"
    yield "accepted", f"{given}: {accepted}"


def _bytes(run: RunDocument) -> str:
    if run.bytes_to_host is None:
        return _NOTHING
    return f"{run.bytes_to_host} to the host, {run.bytes_to_device} to the device"


def _beside_plain(differing: Sequence[int]) -> str:
    if not differing:
        return "the same tokens"
    return f"other tokens of prompts {', '.join(str(place + 1) for place in differing)}"


def _hidden_syncs(simulation: SimulationDocument) -> str:
    if not simulation.hidden_syncs:
        return "none: no operator of a step made the host wait"
    places = Counter(simulation.hidden_syncs)
    return "\n".join((str(places.total()), *(f"{n} of {place}" for place, n in places.items())))


def _overlap(generated: GenerateDocument) -> str:
    run = generated.run
    if not run.overlap:
        return "off: --disable-overlap-schedule"
    if run.overlap_ratio is None:
        return f"on; {generated.device} has no streams, so a step is done when its launch returns"
    return f"on; in {run.overlap_ratio:.0%} of the time in flight the host did not wait"


def _outputs(outputs: Sequence[OutputDocument]) -> Iterator[Section]:
    yield Heading("Outputs")
    rows = tuple(
        (_tokens(each.prompt), _tokens(each.output), each.finish_reason)
        for each in outputs[:_OUTPUTS]
    )
    yield Table(("prompt", "output", "ended by"), rows)
    if len(outputs) > _OUTPUTS:
        yield Lines((f"and {len(outputs) - _OUTPUTS} more; --format json has all of them",))


def _tokens(tokens: Sequence[int]) -> str:
    shown = ", ".join(map(str, tokens[:_TOKENS]))
    return shown if len(tokens) <= _TOKENS else f"{shown} … ({len(tokens)})"
