"""Prompts through the engine, under the plan of a server's flags. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import click

from backend_caps.capability.kind import Phase, Role
from backend_caps.insight.generation_setup import (
    Generation,
    configuration_of,
    configured,
    made_up_prompts,
    models_of,
    options_with_room,
)
from backend_caps.insight.measure import drafts_document
from backend_caps.insight.run_documents import graphs_document
from backend_caps.kit.models import SmallModels
from backend_caps.report.generate_documents import (
    GenerateDocument,
    GenerateStepDocument,
    OutputDocument,
    RunDocument,
    SimulationDocument,
    SpeculationDocument,
)
from backend_caps.report.plans import plan_document
from backend_caps.resolution.flips import flips
from backend_caps.resolution.plan import Policy
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.progress import CaptureProgress, GenerateProgress
from backend_caps.runtime.request import Request
from backend_caps.runtime.stats import EveryObserver, StepStats, StepTotals, now_s
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
_US = 1e6
_Value = TypeVar("_Value")
_SHORTEST, _LONGEST = 3, 24
"""Tokens of made-up prompts."""


if TYPE_CHECKING:
    from backend_caps.runtime.metrics import Metrics


def generate_document(generation: Generation) -> GenerateDocument:
    """Run the prompts under the plan of the flags, and write down what happened.

    Raises:
        BackendCapsError: model, plan, device, prompts or port are refused.
    """
    with ExitStack() as stack:
        simulation = None
        if generation.schedule is not None:
            simulation = stack.enter_context(simulate(generation.schedule))
        models = stack.enter_context(models_of(generation))
        run = _Run(generation, models, simulation, stack)
        run.warm_up()
        run.run(stack)
        differing = run.differing_from_plain() if generation.compares_plain else None
    return run.document(differing)


class _Run:
    """An engine with the prompts of a generation, and what its steps came to.

    Args:
        generation: what to run.
        models: the folders to run it with.
        simulation: the simulated device; None on any other.
        stack: closes the engine and its metrics.
    """

    def __init__(
        self,
        generation: Generation,
        models: SmallModels,
        simulation: Simulation | None,
        stack: ExitStack,
    ) -> None:
        self._generation, self._models, self._simulation = generation, models, simulation
        config = LlamaConfig.from_folder(models.target)
        configuration = configured(generation, models, config)
        self._plan = configuration.plan
        self._prompts = generation.token_ids or made_up_prompts(generation, config)
        self._options = options_with_room(generation, self._prompts, config, self._plan)
        self._has_streams = configuration.streams.traits.has_streams
        self._totals = StepTotals(num_first=generation.num_steps)
        self._metrics = self._served_metrics(stack)
        self._progress = GenerateProgress(len(self._prompts))
        self._requests: list[Request] = []
        self._seconds = 0.0
        self._simulated: SimulationDocument | None = None
        self._num_waits: int | None = None
        """Waits of the host that the simulated device counted; None on any other."""
        with CaptureProgress() as captures:
            engine = Engine(
                models.target,
                configuration,
                options=self._options,
                draft_model_path=models.draft,
                capture_observer=captures,
            )
        self._engine = stack.enter_context(engine)

    def _served_metrics(self, stack: ExitStack) -> Metrics | None:
        """Make the metrics where they are shown or served, and serve them on the port."""
        generation = self._generation
        if generation.metrics_port is None and not generation.shows_metrics:
            return None
        from backend_caps.runtime.metrics import Metrics  # noqa: PLC0415 - of another extra

        metrics = Metrics(has_streams=self._has_streams)
        if generation.metrics_port is not None:
            port = stack.enter_context(metrics.serve(generation.metrics_port))
            click.echo(f"metrics: http://127.0.0.1:{port}/metrics", err=True)
        return metrics

    def warm_up(self) -> None:
        """Run a request that is not counted: the first of a process pays for torch's own start.

        The prompts are submitted and aborted before, so that a refusal names their numbers.
        """
        engine, sampling = self._engine, self._generation.sampling
        for prompt in self._prompts:
            engine.abort(engine.submit(prompt, sampling))
        num_new = min(_WARM_UP_OUTPUT, sampling.max_new_tokens)
        engine.submit(self._prompts[0][:_WARM_UP_PROMPT], replace(sampling, max_new_tokens=num_new))
        engine.drain()

    def run(self, stack: ExitStack) -> None:
        """Step until every request has ended, and nothing is in flight."""
        simulation, num_hidden, num_waits = self._simulation, 0, 0
        observers = (self._totals, self._metrics, self._progress)
        self._engine.scheduler.observer = EveryObserver(tuple(filter(None, observers)))
        if simulation is not None:
            num_hidden, num_waits = len(simulation.hidden_syncs), _num_waits(simulation)
        sampling = self._generation.sampling
        self._requests = [self._engine.submit(prompt, sampling) for prompt in self._prompts]
        progress = stack.enter_context(self._progress)
        began_s, left = now_s(), len(self._requests)
        while left:
            done = {made.request.number for made in self._engine.step() if made.request.is_finished}
            progress.count_done(len(done))
            left -= len(done)
        self._engine.drain()
        self._seconds = now_s() - began_s
        if simulation is not None:  # read now: the plain loop runs on the same device
            hidden = simulation.hidden_syncs[num_hidden:]
            self._num_waits = _num_waits(simulation) - num_waits
            self._simulated = SimulationDocument(
                schedule=str(simulation.schedule), hidden_syncs=[str(sync) for sync in hidden]
            )

    def differing_from_plain(self) -> list[int]:
        """Run the prompts by the plain loop on the same device; list those with other tokens."""
        generation, target = self._generation, self._models.target
        options = replace(self._options, graph_batch_sizes=(), graph_token_counts=())
        configuration = configuration_of(
            replace(generation, flags=self._plan.flags.updated(_PLAIN), policy=Policy.QUIET),
            replace(self._models, draft=None),
            options,
        )
        with Engine(target, configuration, options=options) as engine:
            plain = engine.generate(self._prompts, sampling=generation.sampling)
        return [
            place
            for place, (own, tokens) in enumerate(zip(self._requests, plain, strict=True))
            if own.output != tokens
        ]

    def document(self, differing: list[int] | None) -> GenerateDocument:
        """Write down what happened."""
        generation, engine, plan = self._generation, self._engine, self._plan
        uses, metrics = engine.backends.uses, self._metrics
        return GenerateDocument(
            schema_="backend-caps/generate@1",
            model=None if generation.model is None else str(generation.model),
            device=str(engine.device),
            draft_model=None if generation.draft_model is None else str(generation.draft_model),
            backends={phase.value: uses[phase].backend for phase in Phase if phase in uses},
            plan=plan_document(plan, flips(plan, generation.registry, plan.flags)),
            graphs=graphs_document(engine),
            steps=[self._step(number, stats) for number, stats in enumerate(self._totals.first, 1)],
            run=self._steps(),
            speculation=self._speculation(),
            outputs=[_output(request) for request in self._requests],
            simulation=self._simulated,
            differs_from_plain=differing,
            metrics=metrics.samples() if metrics and generation.shows_metrics else None,
        )

    def _if_streams(self, value: _Value) -> _Value | None:
        """Return a figure of crossing or waiting; None where the device has no streams."""
        return value if self._has_streams else None

    def _step(self, number: int, stats: StepStats) -> GenerateStepDocument:
        return GenerateStepDocument(
            number=number,
            mode=stats.mode.value,
            graph_mode=stats.graph_mode.value,
            num_requests=stats.num_requests,
            num_tokens=stats.num_tokens,
            num_made=stats.num_made,
            total_seq_lens=stats.total_seq_lens,
            waits_for_lengths=stats.waits_for_lengths,
            bytes_to_host=self._if_streams(stats.bytes_to_host),
            bytes_to_device=self._if_streams(stats.bytes_to_device),
            host_us=stats.host_s * _US,
            model_us=(stats.clock.model_done_s - stats.clock.model_s) * _US,
            wait_us=self._if_streams(stats.wait_s * _US),
            accept_lens=[*stats.accept_lens] or None,
        )

    def _steps(self) -> RunDocument:
        totals, memory = self._totals, self._engine.memory
        return RunDocument(
            num_prompts=len(self._requests),
            num_prompt_tokens=sum(len(each.prompt) for each in self._requests),
            num_made=totals.num_made,
            seconds=self._seconds,
            num_steps=_by_mode(totals.num_steps),
            num_eager=_by_mode(totals.num_eager),
            num_in_pieces=_by_mode(totals.num_in_pieces),
            num_in_halves=_by_mode(totals.num_in_halves),
            eager_because=self._eager_because(),
            page_size=memory.page_size,
            max_total_tokens=memory.pages.num_pages * memory.page_size,
            num_retracted=totals.num_retracted,
            planned_waits=self._if_streams(totals.planned_waits),
            bytes_to_host=self._if_streams(totals.bytes_to_host),
            bytes_to_device=self._if_streams(totals.bytes_to_device),
            host_us=totals.host_s / totals.num_steps.total() * _US,
            overlap=self._engine.overlaps,
            overlap_ratio=self._if_streams(totals.overlap_ratio),
        )

    def _eager_because(self) -> dict[str, str]:
        """Say what kept steps from graphs that were captured: only their size can."""
        speculates = self._plan.flags.speculative_algorithm is not None
        captured = self._engine.graphs[Role.TARGET].phases
        return {
            mode.value: "its batches are larger than any that was captured"
            for mode in self._totals.num_eager
            if (Phase.VERIFY if speculates and mode is ForwardMode.DECODE else mode.phase)
            in captured
        }

    def _speculation(self) -> SpeculationDocument | None:
        """Write down how drafts went; None where the server does not speculate."""
        drafts = drafts_document(self._plan)
        if drafts is None:
            return None
        num_verified, num_accepted = self._totals.num_verified, self._totals.num_accepted
        return SpeculationDocument(
            drafts=drafts,
            draft_backends={
                f"{use.role.value} {use.phase.value}": use.backend
                for use in self._engine.spec_v2_attn_backends
                if use.role is not Role.TARGET
            },
            num_verified=num_verified,
            num_drafts=num_verified * (drafts.num_draft_tokens - 1),
            num_accepted=num_accepted - num_verified,
            accept_length=num_accepted / num_verified if num_verified else None,
            planned_waits_for_lengths=self._if_streams(self._totals.waits_for_lengths),
            counted_waits=self._num_waits,
        )


def _by_mode(counts: Mapping[ForwardMode, int]) -> dict[str, int]:
    return {mode.value: count for mode, count in counts.items()}


def _num_waits(simulation: Simulation) -> int:
    """Count the waits of the host so far, without those for everything, which end a run."""
    counts = simulation.counts
    return counts.num_host_waits - counts.num_waits_of(WaitKind.DEVICE)


def _output(request: Request) -> OutputDocument:
    assert request.finish_reason is not None, "every request has ended"
    return OutputDocument(
        prompt=list(request.prompt),
        output=request.output,
        finish_reason=request.finish_reason.value,
    )
