"""From what `backend-caps generate` was asked to the document of what happened. Loads torch."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType

import click

from backend_caps.cli.asked import Asked
from backend_caps.cli.generated import (
    backends_of,
    output_document,
    run_document,
    speculation_document,
    step_document,
)
from backend_caps.cli.graphs import graphs_document
from backend_caps.cli.job import Job, importable, models_of
from backend_caps.cli.options import Request as CommandRequest
from backend_caps.discovery.registry import Registry
from backend_caps.report.documents import plan_document
from backend_caps.report.generate_documents import GenerateDocument, SimulationDocument
from backend_caps.resolution.flips import flips
from backend_caps.resolution.plan import Policy
from backend_caps.runtime.configuration import configure_engine
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.metrics import Metrics
from backend_caps.runtime.observers import EveryObserver, LateObserver, StepTotals
from backend_caps.runtime.progress import CaptureProgress, GenerateProgress
from backend_caps.runtime.request import Request
from backend_caps.runtime.stats import now_s
from backend_caps.simulator import Simulation, WaitKind, simulate

_PLAIN: Mapping[str, object] = MappingProxyType(
    {
        "speculative_algorithm": None,
        "disable_overlap_schedule": True,
        "disable_cuda_graph": True,
        "enable_two_batch_overlap": False,
        "enable_mixed_chunk": False,
    }
)
"""Flags of the loop that has nothing to go wrong: a token a step, one step at a time."""
_WARM_UP_PROMPT, _WARM_UP_OUTPUT = 16, 2
"""Tokens of the request that warms up: a prefill and a decode step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """A run that has ended."""

    engine: Engine
    requests: Sequence[Request]
    totals: StepTotals
    metrics: Metrics
    seconds: float
    simulation: SimulationDocument | None
    num_waits: int | None
    """Waits of the host that the simulated device counted; None on any other."""


def generate_document(
    asked: Asked, request: CommandRequest, registry: Registry
) -> GenerateDocument:
    """Run the prompts under the plan of the request's flags, and write down what happened.

    Raises:
        BackendCapsError: model, plan, device, prompts or port are refused.
    """
    gc.enable()  # the program switched it off, for commands that end before it would matter
    with ExitStack() as stack:
        simulation = None
        if asked.schedule is not None:
            simulation = stack.enter_context(simulate(asked.schedule))
        models = stack.enter_context(models_of(asked, request.flags))
        job = Job.configured(asked, request, registry, models)
        stack.enter_context(importable(request.path))
        ran = _ran(asked, job, simulation, stack)
        differing = _differing(asked, request, registry, job, ran) if asked.compares_plain else None
    plan = job.configuration.plan
    return GenerateDocument(
        schema_="backend-caps/generate@1",
        model=None if asked.model is None else str(asked.model),
        device=str(ran.engine.device),
        draft_model=None if asked.draft_model is None else str(asked.draft_model),
        backends=backends_of(ran.engine),
        plan=plan_document(plan, flips(plan, registry, plan.flags)),
        graphs=graphs_document(ran.engine),
        steps=[
            step_document(number, stats, has_streams=job.has_streams)
            for number, stats in enumerate(ran.totals.first, start=1)
        ],
        run=run_document(ran.engine, ran.requests, ran.totals, ran.seconds),
        speculation=speculation_document(ran.engine, ran.totals, ran.num_waits),
        outputs=[output_document(each) for each in ran.requests],
        simulation=ran.simulation,
        differs_from_plain=differing,
        metrics=dict(ran.metrics.samples()) if asked.shows_metrics else None,
    )


def _differing(
    asked: Asked, request: CommandRequest, registry: Registry, job: Job, ran: _Ran
) -> list[int]:
    """Run the prompts by the plain loop on the same device; list those that get other tokens."""
    flags = job.configuration.plan.flags.updated(_PLAIN)
    options = replace(job.options, graph_batch_sizes=(), graph_token_counts=())
    configuration = configure_engine(
        flags,
        job.models.target,
        device=asked.device,
        options=options,
        facts=request.facts,
        registry=registry,
        rules=request.rules,
        policy=Policy.QUIET,
        unsafe_override=request.override,
    )
    with Engine(job.models.target, configuration, options=options) as engine:
        plain = engine.generate(job.prompts, sampling=asked.sampling)
    return [
        place
        for place, (own, tokens) in enumerate(zip(ran.requests, plain, strict=True))
        if own.output != tokens
    ]


def _ran(asked: Asked, job: Job, simulation: Simulation | None, stack: ExitStack) -> _Ran:
    """Make an engine, warm it up, and run the prompts."""
    metrics, totals = Metrics(has_streams=job.has_streams), StepTotals(num_first=asked.num_steps)
    if asked.metrics_port is not None:
        port = stack.enter_context(metrics.serve(asked.metrics_port))
        click.echo(f"metrics: http://127.0.0.1:{port}/metrics", err=True)
    progress = GenerateProgress(len(job.prompts))
    observer = LateObserver(EveryObserver((totals, metrics, progress)))
    with CaptureProgress() as captures:
        engine = Engine(
            job.models.target,
            job.configuration,
            options=job.options,
            observer=observer,
            draft_model_path=job.models.draft,
            capture_observer=captures,
        )
    stack.enter_context(engine)
    _warm_up(engine, asked, job)
    observer.begin()
    num_syncs = 0 if simulation is None else len(simulation.hidden_syncs)
    num_waits = 0 if simulation is None else _num_waits(simulation)
    requests = [engine.submit(prompt, asked.sampling) for prompt in job.prompts]
    seconds = _run(engine, requests, stack.enter_context(progress))
    return _Ran(
        engine=engine,
        requests=requests,
        totals=totals,
        metrics=metrics,
        seconds=seconds,
        simulation=None if simulation is None else _found(simulation, num_syncs),
        num_waits=None if simulation is None else _num_waits(simulation) - num_waits,
    )


def _warm_up(engine: Engine, asked: Asked, job: Job) -> None:
    """Run a request that nobody counts: the first of a process pays for torch's own start.

    What is asked for is taken in and given up before, so that a refusal is told in its numbers.
    """
    for prompt in job.prompts:
        engine.abort(engine.submit(prompt, asked.sampling))
    num_new = min(_WARM_UP_OUTPUT, asked.sampling.max_new_tokens)
    engine.submit(job.prompts[0][:_WARM_UP_PROMPT], replace(asked.sampling, max_new_tokens=num_new))
    engine.drain()


def _run(engine: Engine, requests: Sequence[Request], progress: GenerateProgress) -> float:
    """Step until every request has ended, and nothing is under way; return the seconds."""
    began_s, left = now_s(), len(requests)
    while left:
        done = {made.request.number for made in engine.step() if made.request.is_finished}
        progress.count_done(len(done))
        left -= len(done)
    engine.drain()
    return now_s() - began_s


def _num_waits(simulation: Simulation) -> int:
    """Count the waits of the host so far, without those for everything, which end a run."""
    counts = simulation.counts
    return counts.num_host_waits - counts.num_waits_of(WaitKind.DEVICE)


def _found(simulation: Simulation, num_before: int) -> SimulationDocument:
    """Write down what the simulated device saw of the steps, without what came before them."""
    return SimulationDocument(
        schedule=str(simulation.schedule),
        hidden_syncs=[str(sync) for sync in simulation.hidden_syncs[num_before:]],
    )
