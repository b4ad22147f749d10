"""From what `backend-caps generate` was asked to the document of what happened. Loads torch."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import click
import torch

from backend_caps.capability.facts import Facts
from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import AttentionArch, BatchKind
from backend_caps.cli.options import Request as CommandRequest
from backend_caps.discovery.registry import Registry
from backend_caps.report.documents import plan_document
from backend_caps.report.generate_documents import (
    GenerateDocument,
    GenerateStepDocument,
    OutputDocument,
    RunDocument,
)
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.flips import flips
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.metrics import Metrics
from backend_caps.runtime.model import LlamaConfig, random_llama
from backend_caps.runtime.observers import EveryObserver, StepTotals
from backend_caps.runtime.progress import GenerateProgress
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.stats import StepStats, now_s
from backend_caps.startup.configure import configure

_PROMPTS = 4
_SHORTEST, _LONGEST = 3, 24
"""Tokens of made-up prompts."""
_US = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to run, and on what."""

    model: Path | None
    """A folder; None makes a small model."""
    token_ids: tuple[tuple[int, ...], ...]
    """The prompts; where there are none, `num_prompts` are made up."""
    num_prompts: int
    device: str
    sampling: Sampling
    options: EngineOptions
    num_steps: int
    """Steps to show."""
    shows_metrics: bool
    metrics_port: int | None
    """Where metrics are served; None is nowhere."""

    @classmethod
    def from_context(cls, ctx: click.Context) -> Self:
        """Read what the command line says."""
        options = ctx.params
        return cls(
            model=options["model"],
            token_ids=options["token_ids"],
            num_prompts=options["prompts"] or _PROMPTS,
            device=options["device"],
            sampling=Sampling(
                max_new_tokens=options["max_new_tokens"],
                temperature=options["temperature"],
                seed=options["seed"],
            ),
            options=EngineOptions(
                max_running_requests=options["max_running_requests"],
                chunked_prefill_size=options["chunked_prefill_size"],
            ),
            num_steps=options["steps"],
            shows_metrics=options["metrics"],
            metrics_port=options["metrics_port"],
        )


def generate_document(
    asked: Asked, request: CommandRequest, registry: Registry
) -> GenerateDocument:
    """Run the prompts under the plan of the request's flags, and write down what happened.

    Raises:
        BackendCapsError: model, plan, device, prompts or port are refused.
    """
    gc.enable()  # the program switched it off, for commands that end before it would matter
    with ExitStack() as stack:
        folder = asked.model or stack.enter_context(_random_model(asked.sampling.seed))
        config = LlamaConfig.from_folder(folder)
        plan = _plan(asked, request, registry, config)
        prompts = asked.token_ids or _made_up(asked, config)
        metrics, totals = Metrics(), StepTotals(num_first=asked.num_steps)
        if asked.metrics_port is not None:
            port = stack.enter_context(metrics.serve(asked.metrics_port))
            click.echo(f"metrics: http://127.0.0.1:{port}/metrics", err=True)
        progress = GenerateProgress(len(prompts))
        observer = EveryObserver((totals, metrics, progress))
        engine = Engine(folder, plan, asked.device, options=asked.options, observer=observer)
        requests = [engine.submit(prompt, asked.sampling) for prompt in prompts]
        seconds = _run(engine, requests, stack.enter_context(progress))
    return GenerateDocument(
        schema_="backend-caps/generate@1",
        model=None if asked.model is None else str(asked.model),
        device=str(engine.device),
        backends=_backends(engine),
        plan=plan_document(plan, flips(plan, registry, plan.flags)),
        steps=[_step(number, stats) for number, stats in enumerate(totals.first, start=1)],
        run=_run_document(engine, requests, totals, seconds),
        outputs=[_output(each) for each in requests],
        metrics=dict(metrics.samples()) if asked.shows_metrics else None,
    )


@contextmanager
def _random_model(seed: int) -> Iterator[Path]:
    """Make a model for as long as a `with` block runs; so small that threads only cost it time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with TemporaryDirectory(prefix="backend-caps-") as folder:
            random_llama(folder, seed=seed)
            yield Path(folder)
    finally:
        torch.set_num_threads(num_threads)


def _plan(asked: Asked, request: CommandRequest, registry: Registry, config: LlamaConfig) -> Plan:
    """Resolve with what the model's config says; what was said on the command line goes before."""
    known = {**_facts(request.flags, config), **request.facts.known()}
    plan, _ = configure(
        request.flags,
        pool_size=asked.options.max_running_requests + 1,
        device=asked.device,
        facts=Facts.model_validate(known),
        registry=registry,
        rules=request.rules,
        policy=request.policy,
        unsafe_override=request.override,
    )
    return plan


def _facts(flags: ServerFlags, config: LlamaConfig) -> Mapping[str, object]:
    dtype = config.dtype or "float32"
    return {
        "dtype": dtype,
        "kv_cache_dtype": dtype if flags.kv_cache_dtype == "auto" else flags.kv_cache_dtype,
        "head_size": config.head_dim,
        "attention_arch": AttentionArch.MHA,
        "context_length": flags.context_length or config.max_position_embeddings,
    }


def _made_up(asked: Asked, config: LlamaConfig) -> Sequence[Sequence[int]]:
    """Draw prompts of mixed lengths from the model's vocabulary."""
    generator = torch.Generator().manual_seed(asked.sampling.seed)
    lengths = torch.randint(_SHORTEST, _LONGEST + 1, (asked.num_prompts,), generator=generator)
    return [
        torch.randint(config.vocab_size, (length,), generator=generator).tolist()
        for length in lengths.tolist()
    ]


def _run(engine: Engine, requests: Sequence[Request], progress: GenerateProgress) -> float:
    """Step until every request has ended, and nothing is under way; return the seconds."""
    began_s, left = now_s(), len(requests)
    while left:
        done = {made.request.number for made in engine.step() if made.request.is_finished}
        progress.count_done(len(done))
        left -= len(done)
    engine.drain()
    return now_s() - began_s


def _step(number: int, stats: StepStats) -> GenerateStepDocument:
    clock = stats.clock
    return GenerateStepDocument(
        number=number,
        mode=stats.mode.value,
        replayed=stats.replayed,
        num_requests=stats.num_requests,
        num_tokens=stats.num_tokens,
        num_made=stats.num_made,
        total_seq_lens=stats.total_seq_lens,
        waits_for_lengths=stats.waits_for_lengths,
        bytes_to_host=stats.bytes_to_host,
        bytes_to_device=stats.bytes_to_device,
        host_us=stats.host_s * _US,
        model_us=(clock.model_done_s - clock.model_s) * _US,
        wait_us=stats.wait_s * _US,
    )


def _run_document(
    engine: Engine, requests: Sequence[Request], totals: StepTotals, seconds: float
) -> RunDocument:
    num_steps = totals.num_steps.total()
    has_streams = engine.streams.traits.has_streams
    return RunDocument(
        num_prompts=len(requests),
        num_prompt_tokens=sum(len(each.prompt) for each in requests),
        num_made=totals.num_made,
        seconds=seconds,
        num_steps={mode.value: count for mode, count in totals.num_steps.items()},
        num_eager={mode.value: count for mode, count in totals.num_eager.items()},
        eager_because={mode.value: _eager_because(engine, mode) for mode in totals.num_eager},
        page_size=engine.memory.page_size,
        num_retracted=totals.num_retracted,
        host_waits=totals.host_waits,
        bytes_to_host=totals.bytes_to_host,
        bytes_to_device=totals.bytes_to_device,
        host_us=totals.host_s / num_steps * _US,
        overlap=not engine.plan.flags.disable_overlap_schedule,
        overlap_ratio=totals.overlap_ratio if has_streams else None,
    )


def _eager_because(engine: Engine, mode: ForwardMode) -> str:
    """Say what keeps the steps of a mode from being replayed."""
    is_decode = mode is ForwardMode.DECODE
    kind = BatchKind.SINGLE_TOKEN_DECODE if is_decode else BatchKind.MIXED_BATCH
    obstacles = [
        obstacle.reason
        for choice in engine.graph_choices
        if choice.phase is mode.phase and choice.kind is kind
        for obstacle in choice.obstacles
    ]
    return ", ".join(obstacles) or "its batches are larger than any that was captured"


def _backends(engine: Engine) -> dict[str, str]:
    uses = engine.backends.names
    return {phase.value: uses[phase].backend for phase in Phase if phase in uses}


def _output(request: Request) -> OutputDocument:
    assert request.finish_reason is not None, "every request has ended"
    return OutputDocument(
        prompt=list(request.prompt),
        output=request.output,
        finish_reason=request.finish_reason.value,
    )
