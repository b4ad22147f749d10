"""Engines that the runtime's tests start from, and ways to run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from backend_caps import Capabilities, HostSeqLens, Plan, ServerFlags, discover, resolve
from backend_caps.capability.facts import Given
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.rules import Rule, RuleSet
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.stats import StepObserver
from tests.runtime.oracle import Job

NATIVE = ("--attention-backend", "torch_native")
PLAIN_LOOP = ("--disable-overlap-schedule",)
LOOPS = [pytest.param((), id="overlapped"), pytest.param(PLAIN_LOOP, id="plain")]
SMALL_CACHE = EngineOptions(max_total_tokens=160, chunked_prefill_size=24)


@cache
def plan_of(*arguments: str) -> Plan:
    """Resolve what a server's arguments ask of the plugins that are installed."""
    registry = discover()
    flags = ServerFlags.from_argv(arguments)
    rules = registry.rules(RUNTIME)
    return resolve(registry.uses(flags), flags, rules=rules, policy="quiet")


def rules_forcing(level: HostSeqLens) -> RuleSet:
    """Force what the host knows of lengths, beside what this engine itself reads there."""
    engine = RuleSet.builtin("sglang-0.5.23")
    forcing = Rule(
        name="test",
        given=Given(enable_dp_attention=False),
        forces=Capabilities(host_seq_lens=level),
        reason="the test says so",
    )
    own = (rule for rule in engine.rules if rule.name in {"ngram", "two-batch-overlap"})
    return replace(engine, rules=(*own, forcing))


def make_engine(
    folder: Path,
    *arguments: str,
    device: torch.device | str = "cpu",
    options: EngineOptions | None = None,
    observer: StepObserver | None = None,
) -> Engine:
    """Make an engine under the plan of a server's arguments; `torch_native` unless they say."""
    if not any(own.endswith("-attention-backend") for own in arguments):
        arguments = (*NATIVE, *arguments)
    return Engine.from_plan(folder, plan_of(*arguments), device, options=options, observer=observer)


def submit(engine: Engine, job: Job) -> Request:
    """Hand a job to an engine."""
    return engine.submit(job.prompt, Sampling(max_new_tokens=job.max_new_tokens))


def run(engine: Engine, jobs: Sequence[Job]) -> list[list[int]]:
    """Run jobs to their end, and the engine until it is empty."""
    requests = [submit(engine, job) for job in jobs]
    engine.drain()
    return [request.output for request in requests]


def leaks(engine: Engine) -> tuple[int, int]:
    """Count the rows and pages that an engine has not got back."""
    memory = engine.memory
    num_rows = memory.rows.pool_size - 1
    return num_rows - memory.rows.num_free, memory.pages.num_pages - memory.pages.num_free
