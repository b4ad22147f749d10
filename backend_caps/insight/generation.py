"""Prompts through the engine, under the plan of a server's flags. Imports torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING

import click
import torch

from backend_caps.capability.kind import Phase, Role
from backend_caps.insight.errors import InsightError
from backend_caps.insight.measure import drafts_document
from backend_caps.insight.run_documents import graphs_document, known
from backend_caps.kit.models import SmallModels, small_models
from backend_caps.report import generate_documents as documents
from backend_caps.report.plans import PlanDocument
from backend_caps.report.words import counted
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import Plan, Policy
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.memory import FULL_CONTEXTS, num_pages_of
from backend_caps.runtime.model.config import LlamaConfig
from backend_caps.runtime.options import EngineOptions, page_size_of
from backend_caps.runtime.progress import CaptureProgress, GenerateProgress
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.speculation import SpecSettings
from backend_caps.runtime.stats import EveryObserver, StepStats, StepTotals, now_s
from backend_caps.simulator import Simulation, WaitKind, simulate
from backend_caps.startup.configuration import Configuration

if TYPE_CHECKING:
    from backend_caps.runtime.metrics import Metrics

_FEW_PROMPTS = 4
_SHORTEST, _LONGEST = 3, 24
"""Tokens of made-up prompts."""
_PLAIN: Mapping[str, object] = {
    "speculative_algorithm": None,
    "disable_overlap_schedule": True,
    "disable_cuda_graph": True,
    "enable_two_batch_overlap": False,
    "enable_mixed_chunk": False,
}
"""Flags of the reference loop: one token a step, one step at a time, without graphs."""
_WARM_UP_PROMPT, _WARM_UP_OUTPUT = 16, 2
"""Tokens of the warm-up request: it runs a prefill and a decode step."""
_US = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What to run, under which flags, and on what."""

    configure: Callable[..., Configuration]
    """`configure_engine` for one device, registry, policy, rules and facts."""
    written: Callable[[Plan], PlanDocument]
    """Writes the document of a plan, with the flips that would change it."""
    flags: ServerFlags
    model: Path | None
    """A folder; None makes a small model."""
    draft_model: Path | None
    """A folder; None where no model drafts, or a small one is made with the small model."""
    token_ids: tuple[tuple[int, ...], ...]
    """The prompts; where there are none, `prompts` are made up."""
    prompts: int | None
    """How many prompts to make up; None is a few."""
    schedule: str | None
    """The order in which the simulated device runs its work; None on any other."""
    sampling: Sampling
    options: EngineOptions
    steps: int
    """How many steps to show."""
    compare_plain: bool
    """Whether the prompts run again by the plain loop."""
    metrics: bool
    """Whether the metrics are shown."""
    metrics_port: int | None
    """Where metrics are served; None is nowhere."""


def generate_document(generation: Generation) -> documents.GenerateDocument:
    """Run the prompts under the plan of the flags, and write down what happened.

    Raises:
        BackendCapsError: model, plan, device, prompts or port are refused.
    """
    with ExitStack() as stack:
        simulation = None
        if generation.schedule is not None:
            simulation = stack.enter_context(simulate(generation.schedule))
        models = stack.enter_context(_models_of(generation))
        run = _Run(generation, models, simulation, stack)
        run.warm_up()
        run.run(stack)
        differing = run.differing_from_plain() if generation.compare_plain else None
    return run.document(differing)


class _Run:
    """An engine with the prompts of a generation; a stack closes it and its metrics."""

    def __init__(
        self,
        generation: Generation,
        models: SmallModels,
        simulation: Simulation | None,
        stack: ExitStack,
    ) -> None:
        self._generation, self._models, self._simulation = generation, models, simulation
        config = LlamaConfig.from_folder(models.target)
        configuration = _configured(generation, models, config)
        self._plan = configuration.plan
        self._prompts = generation.token_ids or _made_up_prompts(generation, config)
        self._options = _options_with_room(generation, self._prompts, config, self._plan)
        self._has_streams = configuration.streams.traits.has_streams
        self._totals = StepTotals(num_first=generation.steps)
        self._metrics = self._served_metrics(stack)
        self._progress = GenerateProgress(len(self._prompts))
        self._requests: list[Request] = []
        self._seconds = 0.0
        self._simulated: documents.SimulationDocument | None = None
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
        if generation.metrics_port is None and not generation.metrics:
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
            self._simulated = documents.SimulationDocument(
                schedule=str(simulation.schedule), hidden_syncs=[str(sync) for sync in hidden]
            )

    def differing_from_plain(self) -> list[int]:
        """Run the prompts by the plain loop on the same device; list those with other tokens."""
        generation, target = self._generation, self._models.target
        options = replace(self._options, graph_batch_sizes=(), graph_token_counts=())
        flags = self._plan.flags.updated(_PLAIN)
        configuration = generation.configure(flags, target, options=options, policy=Policy.QUIET)
        with Engine(target, configuration, options=options) as engine:
            plain = engine.generate(self._prompts, sampling=generation.sampling)
        pairs = zip(self._requests, plain, strict=True)
        return [place for place, (own, other) in enumerate(pairs) if own.output != other]

    def document(self, differing: list[int] | None) -> documents.GenerateDocument:
        """Write down what happened."""
        generation, engine = self._generation, self._engine
        uses, metrics = engine.backends.uses, self._metrics
        return documents.GenerateDocument(
            schema_="backend-caps/generate@1",
            model=None if generation.model is None else str(generation.model),
            device=str(engine.device),
            draft_model=None if generation.draft_model is None else str(generation.draft_model),
            backends={phase.value: uses[phase].backend for phase in Phase if phase in uses},
            plan=generation.written(self._plan),
            graphs=graphs_document(engine),
            steps=[self._step(number, stats) for number, stats in enumerate(self._totals.first, 1)],
            run=self._steps(),
            speculation=self._speculation(),
            outputs=[documents.OutputDocument.of(own) for own in self._requests],
            simulation=self._simulated,
            differs_from_plain=differing,
            metrics=metrics.samples() if metrics and generation.metrics else None,
        )

    def _crossing(self, **figures: float) -> Mapping[str, object]:
        """Return figures of crossing or waiting; None for each where the device has no streams."""
        return known(figures, when=self._has_streams)

    def _step(self, number: int, stats: StepStats) -> documents.GenerateStepDocument:
        return documents.GenerateStepDocument.of(
            stats,
            number=number,
            host_us=stats.host_s * _US,
            model_us=(stats.clock.model_done_s - stats.clock.model_s) * _US,
            accept_lens=stats.accept_lens or None,
            **self._crossing(
                bytes_to_host=stats.bytes_to_host,
                bytes_to_device=stats.bytes_to_device,
                wait_us=stats.wait_s * _US,
            ),
        )

    def _steps(self) -> documents.RunDocument:
        totals, memory = self._totals, self._engine.memory
        by_mode = {
            "num_steps": totals.num_steps,
            "num_eager": totals.num_eager,
            "num_in_pieces": totals.num_in_pieces,
            "num_in_halves": totals.num_in_halves,
        }
        return documents.RunDocument.of(
            totals,
            num_prompts=len(self._requests),
            num_prompt_tokens=sum(len(each.prompt) for each in self._requests),
            seconds=self._seconds,
            eager_because=self._eager_because(),
            page_size=memory.page_size,
            max_total_tokens=memory.pages.num_pages * memory.page_size,
            host_us=totals.host_s / totals.num_steps.total() * _US,
            overlap=self._engine.overlaps,
            **{name: {mode.value: n for mode, n in own.items()} for name, own in by_mode.items()},
            **self._crossing(
                planned_waits=totals.planned_waits,
                bytes_to_host=totals.bytes_to_host,
                bytes_to_device=totals.bytes_to_device,
                overlap_ratio=totals.overlap_ratio,
            ),
        )

    def _eager_because(self) -> dict[str, str]:
        """Return why steps ran eagerly although graphs were captured: only their size can be."""
        speculates = self._plan.flags.speculative_algorithm is not None
        captured = self._engine.graphs[Role.TARGET].phases
        return {
            mode.value: "its batches are larger than any that was captured"
            for mode in self._totals.num_eager
            if (Phase.VERIFY if speculates and mode is ForwardMode.DECODE else mode.phase)
            in captured
        }

    def _speculation(self) -> documents.SpeculationDocument | None:
        """Write down how drafts went; None where the server does not speculate."""
        drafts = drafts_document(self._plan)
        if drafts is None:
            return None
        num_verified, num_accepted = self._totals.num_verified, self._totals.num_accepted
        return documents.SpeculationDocument(
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
            **self._crossing(planned_waits_for_lengths=self._totals.waits_for_lengths),
            counted_waits=self._num_waits,
        )


def _num_waits(simulation: Simulation) -> int:
    """Count the waits of the host so far; waits for the whole device end a run and are left out."""
    return simulation.counts.num_host_waits - simulation.counts.num_waits_of(WaitKind.DEVICE)


@contextmanager
def _models_of(generation: Generation) -> Iterator[SmallModels]:
    """Find the models that were named, or make small ones for as long as a `with` block runs."""
    if generation.model is not None:
        yield SmallModels(target=generation.model, draft=generation.draft_model)
        return
    settings = SpecSettings.from_flags(generation.flags)
    algorithm = None if settings is None else settings.algorithm
    with small_models(algorithm, seed=generation.sampling.seed) as models:
        yield models


def _configured(generation: Generation, models: SmallModels, config: LlamaConfig) -> Configuration:
    """Configure the engine, and warn of a plan with problems."""
    dtype = generation.options.dtype or getattr(torch, _dtype_of(config))
    options = replace(generation.options, dtype=dtype)
    # Python writes to standard error what is logged while nothing handles it.
    log, nowhere = logging.getLogger("backend_caps"), logging.NullHandler()
    log.addHandler(nowhere)
    try:
        configuration = generation.configure(
            generation.flags, models.target, draft_model_path=models.draft, options=options
        )
    finally:
        log.removeHandler(nowhere)
    plan = configuration.plan
    if plan.problems and plan.policy is not Policy.QUIET:
        many = counted(len(plan.problems), "problem")
        click.echo(f"warning: the plan has {many}; --policy strict names them", err=True)
    return configuration


def _dtype_of(config: LlamaConfig) -> str:
    """Return the model's dtype, which is never converted by itself: other tokens come of that."""
    dtype = config.dtype or "float32"
    first, other = "bfloat16", "float32"
    if dtype not in {first, other}:
        raise InsightError(
            "model-dtype",
            f"the model's dtype is {dtype!r}; {first!r} or {other!r} was expected, which the "
            f"engine computes in. Add --dtype {first}, or --dtype {other} for twice the memory "
            f"and more exact numbers: the weights are converted.",
        )
    return dtype


def _made_up_prompts(generation: Generation, config: LlamaConfig) -> Sequence[Sequence[int]]:
    """Draw prompts of mixed lengths from the model's vocabulary."""
    num_prompts = generation.prompts or _FEW_PROMPTS
    generator = torch.Generator().manual_seed(generation.sampling.seed)
    lengths = torch.randint(_SHORTEST, _LONGEST + 1, (num_prompts,), generator=generator)
    return [
        torch.randint(config.vocab_size, (length,), generator=generator).tolist()
        for length in lengths.tolist()
    ]


def _options_with_room(
    generation: Generation, prompts: Sequence[Sequence[int]], config: LlamaConfig, plan: Plan
) -> EngineOptions:
    """Size the KV cache for the longest requests that can run at once, unless it is given."""
    options = generation.options
    if options.max_total_tokens is not None:
        return options
    settings, page_size = SpecSettings.from_flags(plan.flags), page_size_of(plan)
    behind = 0 if settings is None else settings.lookahead  # what speculative steps write there
    context = plan.flags.context_length or config.max_position_embeddings
    lengths = (len(prompt) + generation.sampling.max_new_tokens + behind for prompt in prompts)
    longest = nlargest(options.max_running_requests, lengths)
    num_pages = sum(num_pages_of(length, page_size) for length in longest)
    most = FULL_CONTEXTS * num_pages_of(context + behind, page_size)
    return replace(options, max_total_tokens=min(num_pages, most) * page_size)
