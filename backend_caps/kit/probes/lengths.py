"""What the host is told of lengths: all, a bound, nothing; and a forward that is told so.

Shapes: B requests and T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.check import Case, Effort, cases_of
from backend_caps.kit.probes.reads import Reads
from backend_caps.kit.rig import Rig, on_host, supplied
from backend_caps.kit.scenarios import (
    Forward,
    Scenario,
    draw,
    forwards_of,
    scenarios_of,
)
from backend_caps.kit.scenes import Scene, batch_of, causal
from backend_caps.kit.subject import Subject
from backend_caps.runtime.attention import AttentionBackend

RELAYED = tuple(own for own in Forward if own.phase is not Phase.PREFILL)
"""Forwards whose lengths the host has only where somebody waits for them."""


def level_of(subject: Subject, scenario: Scenario) -> HostSeqLens:
    """Say which host lengths a backend claims to read in forwards of a scenario."""
    level = subject.claim(
        "host_seq_lens",
        scenario.forward.role,
        scenario.forward.phase,
        dtype=scenario.dtype,
        kv_cache_dtype=scenario.dtype,
        head_size=scenario.head_size,
        page_size=scenario.page_size,
    )
    assert isinstance(level, HostSeqLens), "a level is one of the scale"
    return level


def relayed_scenarios(subject: Subject, *levels: HostSeqLens) -> Iterator[Scenario]:
    """List the scenarios without prompts in which a backend claims one of these levels."""
    for own in scenarios_of(subject, RELAYED):
        if level_of(subject, own) in levels:
            yield own


def relayed_cases(
    code: str, subject: Subject, effort: Effort, *levels: HostSeqLens
) -> Iterator[Case]:
    """Try each scenario without prompts in which a backend claims one of these levels.

    Each forward comes before any comes again: the first findings are of all that read.
    """
    cases = cases_of(code, relayed_scenarios(subject, *levels), effort)
    yield from sorted(cases, key=lambda case: (case.seed, scenario_of(case).page_size))


def scenario_of(case: Case) -> Scenario:
    """Return what a case's batches are made of."""
    assert case.scenario is not None, "each case has batches"
    return case.scenario


def scenes_of(subject: Subject, case: Case) -> tuple[Scene, Scene | None]:
    """Draw a case's batch, and in every other case its prompts, which run before it.

    The scheduler knows the prompts' lengths: whoever keeps those for later shows it.
    """
    scene = draw(scenario_of(case), case.seed)
    has_prompts = case.seed % 2 and Forward.PREFILL in forwards_of(subject)
    return scene, prompts_of(scene) if has_prompts else None


def prompts_of(scene: Scene) -> Scene | None:
    """Make the batch that brought what is cached, to the same slots; None where nothing is."""
    cached = [len(keys) - new for (keys, _), new in zip(scene.contexts, scene.counts, strict=True)]
    own = scene.select([place for place, count in enumerate(cached) if count])
    counts = [count for count in cached if count]
    if not counts:
        return None
    contexts = [(k[:n], v[:n]) for (k, v), n in zip(own.contexts, counts, strict=True)]
    keys, values = (torch.cat(parts) for parts in zip(*contexts, strict=True))
    rows, table = own.batch.req_pool_indices, own.pools.req_to_token
    slots = torch.cat([table[row, :n] for row, n in zip(rows, counts, strict=True)])
    return replace(
        own,
        batch=batch_of([(0, count) for count in counts], rows, slots.long(), uniform=False),
        q=own.q.new_zeros(len(keys), *own.q.shape[1:]),
        k=keys,
        v=values,
        contexts=contexts,
        counts=counts,
        visible=[causal(count, count) for count in counts],
    )


def loose_bounds(scene: Scene, case: Case) -> Tensor:
    """Draw a bound for each length of a batch: [B] int64, host.

    Each is the length itself, the longest there may be, or between the two; the first that can
    be is not the length.
    """
    name = f"bounds of {scenario_of(case).name}#{case.seed}"
    dice = random.Random(name)  # noqa: S311 - no secrets
    most = scenario_of(case).max_context_len
    lengths: list[int] = scene.batch.seq_lens.tolist()
    bounds = [
        dice.choice((length, most, dice.randint(length, most), dice.randint(length, most)))
        for length in lengths
    ]
    if bounds == lengths:
        loose = next((place for place, length in enumerate(lengths) if length < most), None)
        if loose is not None:
            bounds[loose] = most
    return torch.tensor(bounds, dtype=torch.int64)


def run_told(
    rig: Rig,
    scenes: tuple[Scene, Scene | None],
    level: HostSeqLens,
    *,
    bounds: Tensor | None = None,
    reads: Reads | None = None,
) -> Tensor:
    """Run a batch in a new backend, behind its prompts where there are some.

    returns  [T, Hq, Dv], host

    Args:
        rig: where.
        scenes: the batch and its prompts, whose lengths the host knows.
        level: what the host is told of the batch's lengths.
        bounds: stands in place of each length that the host is told of the batch, [B], host.
        reads: is told what is read of them.

    Raises:
        Exception: whatever the backend raises.
    """
    with rig.running():
        scene = supplied(scenes[0], level)
        scene = scene if bounds is None else _with_bounds(scene, bounds)
        scene = scene.on(rig.device)
        build: Callable[..., AttentionBackend] = rig.subject.build
        backend = build(scene.pools)
        if scenes[1] is not None:
            prompts = replace(supplied(scenes[1], level).on(rig.device), pools=scene.pools)
            backend.init_forward_metadata(prompts.batch)
            prompts.forward(backend)
        if reads is not None:
            scene = replace(scene, batch=reads.watch(scene.batch))
        backend.init_forward_metadata(scene.batch)
        return on_host(scene.forward(backend))


def _with_bounds(scene: Scene, bounds: Tensor) -> Scene:
    """Put bounds in the place of what the host is told; what it is not told stays untold."""
    batch = scene.batch
    is_told = batch.seq_lens_cpu is not None
    return replace(
        scene,
        batch=replace(
            batch,
            seq_lens_cpu=bounds.clone() if is_told else None,
            seq_lens_sum=int(bounds.sum()) if is_told else None,
            seq_lens_cpu_upper_bound=bounds.clone(),
        ),
    )
