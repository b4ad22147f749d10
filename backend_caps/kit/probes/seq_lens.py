"""What the host knows of lengths, what a backend reads of it, and where the host waits.

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

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Effort, Forward, Rig, Scenario, Subject, draw, on_host, supplied
from backend_caps.kit.check import cases_of, scenario_of
from backend_caps.kit.scenarios import forwards_of, scenarios_of
from backend_caps.kit.scenes import Scene, batch_of, causal
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import HostSync, Simulation, Site, Waited, WaitKind

_CUDA_WORDS = "synchronizing CUDA operation"
_CUDA_IS_SILENT, _CUDA_WARNS = 0, 1


@contextmanager
def host_waits(simulation: Simulation | None) -> Iterator[list[HostSync]]:
    """Collect the waits of a `with` block, in the list that it gives, once the block has ended.

    Args:
        simulation: the one that runs; None is CUDA, where torch's own watch sees what blocks
            within an operator and who waits for a stream, and neither waits for events or the whole
            device nor what other libraries do.
    """
    found: list[HostSync] = []
    if simulation is not None:
        seen = len(simulation.hidden_syncs), len(simulation.host_waits)
        yield found
        found += simulation.hidden_syncs[seen[0] :] + simulation.host_waits[seen[1] :]
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode(_CUDA_WARNS)
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(_CUDA_IS_SILENT)
    found += [
        HostSync(
            cause="an operator or a stream",
            site=Site(own.filename, own.lineno),
            waited=Waited(WaitKind.HIDDEN, None),
        )
        for own in warned
        if _CUDA_WORDS in str(own.message)
    ]


MIRROR = frozenset({"seq_lens_cpu", "seq_lens_sum"})
"""What only a host wait makes true."""
BOUND = frozenset({"seq_lens_cpu_upper_bound"})
"""What the host knows without waiting."""
CUTS = frozenset({"extend_seq_lens_cpu", "extend_prefix_lens_cpu"})
"""What the scheduler cut by itself."""
_PASSING_ON = frozenset({"copy", "copyreg", "dataclasses"})


@dataclass(frozen=True, slots=True)
class Read:
    """One read of a host length that was there."""

    name: str
    """The batch's field."""
    site: Site
    """The line that looked: the backend's own, where one of its lines was running."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The reads of the batches that it watches.

    Args:
        subject: whose reads they are.
    """

    subject: Subject
    seen: list[Read] = field(default_factory=list)
    """In their order, each as often as it was done."""

    def of(self, names: Collection[str]) -> Sequence[Read]:
        """List reads of some fields, each line once."""
        return list(dict.fromkeys(own for own in self.seen if own.name in names))

    def watch(self, batch: ForwardBatch) -> ForwardBatch:
        """Return a batch with the same values that records each read of a host length.

        A length that is None is not recorded. A copy of the batch records its own reads; copying
        it is none.
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

        watched = copy(batch)
        watched.__class__ = Watched
        return watched

    def _note(self, name: str) -> None:
        """Record the reader: the innermost line of the backend, else the line itself."""
        frame = sys._getframe(2)  # noqa: SLF001 - the reader's, behind this and `__getattribute__`
        if frame.f_globals["__name__"] in _PASSING_ON:
            return
        reader = Site(frame.f_code.co_filename, frame.f_lineno)
        self.seen.append(Read(name, self.subject.running_line() or reader))


def describe_reads(reads: Sequence[Read], root: Path) -> str:
    """List what was read, and where, as seen from the folder of a backend's code."""
    shown: dict[str, list[str]] = {}
    for own in reads:
        file = Path(own.site.file)
        is_within = root.is_dir() and file.is_relative_to(root)
        name = file.relative_to(root) if is_within else file.name
        shown.setdefault(own.name, []).append(f"{name}:{own.site.line}")
    return " and ".join(f"{name} ({', '.join(lines)})" for name, lines in shown.items())


_HOST_LENGTHS = MIRROR | BOUND | CUTS


RELAYED = tuple(own for own in Forward if own.phase is not Phase.PREFILL)
"""Forwards whose lengths the host has only after a wait."""


def level_of(subject: Subject, scenario: Scenario) -> HostSeqLens:
    """Return which host lengths a backend claims to read in forwards of a scenario."""
    return subject.claim_as(
        HostSeqLens,
        "host_seq_lens",
        scenario.forward.role,
        scenario.forward.phase,
        dtype=scenario.dtype,
        kv_cache_dtype=scenario.dtype,
        head_size=scenario.head_size,
        page_size=scenario.page_size,
    )


def relayed_scenarios(subject: Subject, *levels: HostSeqLens) -> Iterator[Scenario]:
    """List the scenarios without prompts in which a backend claims one of these levels."""
    return (own for own in scenarios_of(subject, RELAYED) if level_of(subject, own) in levels)


def relayed_cases(
    code: str, subject: Subject, effort: Effort, *levels: HostSeqLens
) -> Iterator[Case]:
    """Try each scenario without prompts in which a backend claims one of these levels.

    Each forward comes before any comes again: the first findings are of all that read.
    """
    cases = cases_of(code, relayed_scenarios(subject, *levels), effort)
    yield from sorted(cases, key=lambda case: (case.seed, scenario_of(case).page_size))


def scenes_of(subject: Subject, case: Case) -> tuple[Scene, Scene | None]:
    """Draw a case's batch, and in every other case its prompts, which run before it.

    The scheduler knows the prompts' lengths: a backend that keeps those fails in the batch.
    """
    scene = draw(scenario_of(case), case.seed)
    has_prompts = case.seed % 2 and Forward.PREFILL in forwards_of(subject)
    return scene, prompts_of(scene) if has_prompts else None


def prompts_of(scene: Scene) -> Scene | None:
    """Make the batch that brought what is cached, to the same slots; None where nothing is."""
    own = scene.select([place for place, (cached, _) in enumerate(scene.requests) if cached])
    counts = [cached for cached, _ in own.requests]
    if not counts:
        return None
    contexts = [(k[:n], v[:n]) for (k, v), n in zip(own.contexts, counts, strict=True)]
    keys, values = (torch.cat(parts) for parts in zip(*contexts, strict=True))
    rows, table = own.batch.req_pool_indices, own.pools.req_to_token
    slots = torch.cat([table[row, :n] for row, n in zip(rows, counts, strict=True)]).long()
    return replace(
        own,
        batch=batch_of([(0, count) for count in counts], rows, slots, uniform=False),
        q=own.q.new_zeros(len(keys), *own.q.shape[1:]),
        k=keys,
        v=values,
        contexts=contexts,
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


def run_with_lengths(
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
        level: which lengths of the batch the host has.
        bounds: replaces each length of the batch that the host has, [B], host.
        reads: records what is read of them.

    Raises:
        Exception: whatever the backend raises.
    """
    with rig.running():
        scene = supplied(scenes[0], level, bounds).on(rig.device)
        backend = rig.build(scene.pools)
        if scenes[1] is not None:
            prompts = supplied(scenes[1], level).on(rig.device)
            replace(prompts, pools=scene.pools).attend(backend)
        if reads is not None:
            scene = replace(scene, batch=reads.watch(scene.batch))
        return on_host(scene.attend(backend))
