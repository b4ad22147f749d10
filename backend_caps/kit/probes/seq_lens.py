"""Host lengths: which ones a batch has, which ones a backend reads, and host waits.

Shapes: B requests and T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Effort, Forward, Rig, Scenario, Subject, draw, on_host, supplied
from backend_caps.kit.check import spread_cases
from backend_caps.kit.scenarios import forwards_of, scenarios_of
from backend_caps.kit.scenes import Scene, batch_of, causal
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import HostSync, Simulation, Site, Waited, WaitKind

_CUDA_WORDS = "synchronizing CUDA operation"
_CUDA_IS_SILENT, _CUDA_WARNS = 0, 1


@contextmanager
def host_waits(simulation: Simulation | None) -> Iterator[list[HostSync]]:
    """Yield a list that holds the host waits of the `with` block once the block has ended.

    Args:
        simulation: the simulated device; None on CUDA. There torch's sync debug mode sees blocking
            operators and stream waits. It misses waits for events or for the whole device, and
            those of other libraries.
    """
    waits: list[HostSync] = []
    if simulation is not None:
        before = len(simulation.hidden_syncs), len(simulation.host_waits)
        yield waits
        waits += simulation.hidden_syncs[before[0] :] + simulation.host_waits[before[1] :]
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(_CUDA_WARNS)
        try:
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode(_CUDA_IS_SILENT)
    waits += [
        HostSync(
            cause="an operator or a stream",
            site=Site(warning.filename, warning.lineno),
            waited=Waited(WaitKind.HIDDEN, None),
        )
        for warning in warned
        if _CUDA_WORDS in str(warning.message)
    ]


MIRROR = frozenset({"seq_lens_cpu", "seq_lens_sum"})
"""Exact lengths, for which the host has to wait."""
BOUND = frozenset({"seq_lens_cpu_upper_bound"})
"""Bounds, which the host computes without a wait."""
CUTS = frozenset({"extend_seq_lens_cpu", "extend_prefix_lens_cpu"})
"""Lengths of prompt chunks, which the scheduler chooses."""
_HOST_LENGTHS = MIRROR | BOUND | CUTS
_COPYING = frozenset({"copy", "copyreg", "dataclasses"})
"""Modules that read all fields to copy a batch, which is no use of a length."""


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a host length that is not None."""

    name: str
    """The batch's field."""
    site: Site
    """The reading line: the backend's, where one of its lines was running."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The reads of watched batches.

    Args:
        subject: the backend that reads.
    """

    subject: Subject
    seen: list[Read] = field(default_factory=list)
    """All reads in their order, repetitions included."""

    def of(self, names: Collection[str]) -> Sequence[Read]:
        """List reads of some fields, each line once."""
        return list(dict.fromkeys(read for read in self.seen if read.name in names))

    def watch(self, batch: ForwardBatch) -> ForwardBatch:
        """Return a copy of a batch that records each read of a host length.

        A length that is None is not recorded. Copies of the batch record reads, too; copying it is
        no read.
        """
        note = self._note

        class Watched(ForwardBatch):
            """A batch that records reads of host lengths."""

            __slots__ = ()

            def __getattribute__(self, name: str) -> object:
                value: object = super().__getattribute__(name)
                if value is not None and name in _HOST_LENGTHS:
                    note(name)
                return value

        # `__class__`, not a wrapper: backends may test `isinstance(batch, ForwardBatch)`.
        watched = copy(batch)
        watched.__class__ = Watched
        return watched

    def _note(self, name: str) -> None:
        """Record a read at the innermost line of the backend, else at the reading line."""
        frame = sys._getframe(2)  # noqa: SLF001 - skips this function and `__getattribute__`
        if frame.f_globals["__name__"] in _COPYING:
            return
        reader = Site(frame.f_code.co_filename, frame.f_lineno)
        self.seen.append(Read(name, self.subject.running_line() or reader))


def describe_reads(reads: Sequence[Read], root: Path) -> str:
    """List fields with the lines that read them, relative to the folder of a backend's code."""
    lines_of: dict[str, list[str]] = {}
    for read in reads:
        file = Path(read.site.file)
        is_within = root.is_dir() and file.is_relative_to(root)
        name = file.relative_to(root) if is_within else file.name
        lines_of.setdefault(read.name, []).append(f"{name}:{read.site.line}")
    return " and ".join(f"{name} ({', '.join(lines)})" for name, lines in lines_of.items())


RELAYED = tuple(forward for forward in Forward if forward.phase is not Phase.PREFILL)
"""Forwards whose lengths the host knows only after a wait."""


def level_of(subject: Subject, scenario: Scenario) -> HostSeqLens:
    """Return a backend's claim of `host_seq_lens` for a scenario."""
    return subject.claim_as(
        HostSeqLens,
        "host_seq_lens",
        **scenario.forward.use,
        dtype=scenario.dtype,
        kv_cache_dtype=scenario.dtype,
        head_size=scenario.head_size,
        page_size=scenario.page_size,
    )


def relayed_scenarios(subject: Subject, *levels: HostSeqLens) -> Iterator[Scenario]:
    """List the scenarios without prompts in which a backend claims one of these levels."""
    return (each for each in scenarios_of(subject, RELAYED) if level_of(subject, each) in levels)


def relayed_cases(
    code: str, subject: Subject, effort: Effort, *levels: HostSeqLens
) -> Iterator[Case]:
    """Make cases of the scenarios without prompts in which a backend claims one of these levels.

    Each forward comes once before any is repeated, so the first findings cover all forwards.
    """
    cases = spread_cases(code, relayed_scenarios(subject, *levels), subject, effort)
    yield from sorted(cases, key=lambda case: (case.seed, case.batch_scenario.page_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptedBatch:
    """A batch, and the batch of its prompts, which may run before it."""

    rig: Rig
    batch: Scene
    prompts: Scene | None = None

    @classmethod
    def of(cls, rig: Rig, case: Case) -> Self:
        """Draw a case's batch, at odd seeds with its prompts.

        The host knows the prompts' lengths: a backend that reuses those fails in the batch.
        """
        batch = draw(case.batch_scenario, case.seed)
        has_prompts = case.seed % 2 and Forward.PREFILL in forwards_of(rig.subject)
        return cls(rig=rig, batch=batch, prompts=prompts_of(batch) if has_prompts else None)

    def run(
        self, level: HostSeqLens, *, bounds: Tensor | None = None, reads: Reads | None = None
    ) -> Tensor:
        """Run the batch in a new backend, after its prompts.

        returns  [T, Hq, Dv], host

        Args:
            level: the host lengths that the batch has.
            bounds: replaces each host length, [B], host.
            reads: records which host lengths are read.

        Raises:
            Exception: any that the backend raises.
        """
        with self.rig.running():
            scene = supplied(self.batch, level, bounds).on(self.rig.device)
            backend = self.rig.build(scene.pools)
            if self.prompts is not None:
                prompts = supplied(self.prompts, level).on(self.rig.device)
                replace(prompts, pools=scene.pools).attend(backend)
            if reads is not None:
                scene = replace(scene, batch=reads.watch(scene.batch))
            return on_host(scene.attend(backend))


def prompts_of(scene: Scene) -> Scene | None:
    """Make the prefill that writes a scene's cached tokens; None where no token is cached."""
    prompts = scene.select([place for place, (cached, _) in enumerate(scene.requests) if cached])
    counts = [cached for cached, _ in prompts.requests]
    if not counts:
        return None
    contexts = [(k[:n], v[:n]) for (k, v), n in zip(prompts.contexts, counts, strict=True)]
    keys, values = (torch.cat(parts) for parts in zip(*contexts, strict=True))
    rows, table = prompts.batch.req_pool_indices, prompts.pools.req_to_token
    slots = torch.cat([table[row, :n] for row, n in zip(rows, counts, strict=True)]).long()
    return replace(
        prompts,
        batch=batch_of([(0, count) for count in counts], rows, slots, uniform=False),
        q=prompts.q.new_zeros(len(keys), *prompts.q.shape[1:]),
        k=keys,
        v=values,
        contexts=contexts,
        visible=[causal(count, count) for count in counts],
    )


def loose_bounds(scene: Scene, case: Case) -> Tensor:
    """Draw an upper bound for each length of a batch: [B] int64, host.

    A bound is the length, the longest possible one, or between. At least one bound is loose where
    a length is below the longest.
    """
    name = f"bounds of {case.batch_scenario.name}#{case.seed}"
    dice = random.Random(name)  # noqa: S311 - no secrets
    most = case.batch_scenario.max_context_len
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
