"""Host lengths: none where none are claimed, any bound, none in vain, and buffers without them.

An opt-out from the mirror counts only with `max_context_len_known`: what the mirror would have
sized is then sized by the page table's width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count

import torch
from torch import Tensor

from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit import Case, Check, Effort, Fault, Hint, Rig, Subject, draw, on_host
from backend_caps.kit.check import cases_of, counted, long_cases, scenario_of
from backend_caps.kit.probes.seq_lens import (
    BOUND,
    MIRROR,
    Reads,
    describe_reads,
    level_of,
    loose_bounds,
    relayed_cases,
    relayed_scenarios,
    run_with_lengths,
    scenes_of,
)
from backend_caps.kit.rig import baseline_of, supplied
from backend_caps.kit.scenes import Scene
from backend_caps.report.check_catalog import CATALOG, WIDE_CONTEXT
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Site

_BOUND = HostSeqLens.UPPER_BOUND
_ASKED = HostSeqLens.EXACT, _BOUND
_WITHOUT = HostSeqLens.NONE, _BOUND
"""Width of the page table, in tokens: above the 256 that guesses are made of."""


def _excuse(levels: Sequence[HostSeqLens], reason: str, subject: Subject) -> str | None:
    """Excuse a backend that claims none of the levels in any forward of the relay loop."""
    return None if any(relayed_scenarios(subject, *levels)) else reason


def _outcome(
    rig: Rig, case: Case, right: Callable[[], Tensor], run: Callable[[], Tensor]
) -> tuple[str | None, Site | None]:
    """Say how a run failed, or differs from the right one, and at which line; None: not."""
    expected = baseline_of(right)
    try:
        found = run()
    except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
        told = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
        return f"it raised {told}", rig.subject.line_in(error.__traceback__)
    return rig.difference(found, expected, scenario_of(case)), None


def _run_absent(rig: Rig, case: Case) -> Iterator[Fault]:
    forward, scenes = scenario_of(case).forward, scenes_of(rig.subject, case)
    level, run = level_of(rig.subject, scenario_of(case)), partial(run_with_lengths, rig, scenes)
    what, site = _outcome(rig, case, partial(run, HostSeqLens.EXACT), partial(run, level))
    if what is not None:
        watch, seen = Reads(rig.subject), ""
        with suppress(Exception):  # what was read before it raised counts
            run(HostSeqLens.EXACT, reads=watch)
        behind = "" if scenes[1] is None else ", behind prompts that had it,"
        if reads := watch.of(MIRROR | BOUND if level is HostSeqLens.NONE else MIRROR):
            use, where = f"{forward.role.value}/{forward.phase.value}", rig.subject.root
            seen = f"; where it is there, {use} reads {describe_reads(reads, where)}"
        site = site or next((own.site for own in reads), None)
        yield Fault(what=f"without the mirror{behind} {what}{seen}", site=site)


MIRROR_ABSENT = Check(
    about=CATALOG["mirror-absent"],
    excuse=partial(_excuse, _WITHOUT, "it claims EXACT: the mirror is there"),
    cases=lambda subject, effort: relayed_cases("mirror-absent", subject, effort, *_WITHOUT),
    run=_run_absent,
)


def _cases_bound(subject: Subject, effort: Effort) -> Iterable[Case]:
    cases = list(relayed_cases("mirror-bound", subject, effort, _BOUND))
    return [*cases, *long_cases(cases, effort)]


def _run_bound(rig: Rig, case: Case) -> Iterator[Fault]:
    scenes = scenes_of(rig.subject, case)
    bounds, reads = loose_bounds(scenes[0], case), Reads(rig.subject)
    run = partial(run_with_lengths, rig, scenes, _BOUND)
    what, site = _outcome(rig, case, run, partial(run, bounds=bounds, reads=reads))
    if what is not None:
        site = site or next((own.site for own in reads.of(BOUND)), None)
        lengths = scenes[0].batch.seq_lens.tolist()
        yield Fault(what=f"with bounds {bounds.tolist()} of lengths {lengths} {what}", site=site)


MIRROR_BOUND = Check(
    about=CATALOG["mirror-bound"],
    excuse=partial(_excuse, (_BOUND,), "it does not claim UPPER_BOUND: no bound is read"),
    cases=_cases_bound,
    run=_run_bound,
)


def _run_read(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run it with all lengths that it claims to need; other checks compare the outputs."""
    level = level_of(rig.subject, scenario_of(case))
    baseline_of(lambda: run_with_lengths(rig, scenes_of(rig.subject, case), level))
    yield from ()


def _hints_read(subject: Subject, cases: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Look at each level that is claimed by itself: a condition may claim one more."""
    is_said = subject.declaration.capabilities.host_seq_lens is not UNDECLARED
    claimed = "declared" if is_said else "not declared, so"
    is_known = subject.claim("max_context_len_known") is True
    beside = "" if is_known else ", which max_context_len_known=True has to come with"
    for level in _ASKED:
        own = [case for case in cases if level_of(subject, scenario_of(case)) is level]
        found = None
        with suppress(Exception):  # it ran before: what comes and goes is no ground for a hint
            found = _candidate(rig, level, own) if own else None
        if found is not None:
            seen, candidate = found
            yield Hint(
                claim="host_seq_lens",
                what=f"{claimed} {level.name}; "
                f"{seen} {counted(own)}; candidate for {candidate.name}{beside}",
            )


def _candidate(
    rig: Rig, level: HostSeqLens, cases: Sequence[Case]
) -> tuple[str, HostSeqLens] | None:
    """Return what was seen, and the level that would do; None where the claim is needed.

    A bound costs no wait: that an output is the same without one asks for nothing.
    """
    reads, names = Reads(rig.subject), MIRROR if level is HostSeqLens.EXACT else BOUND
    for case in cases:
        run_with_lengths(rig, scenes_of(rig.subject, case), level, reads=reads)
        if reads.of(names):
            break
    else:
        return "never read", HostSeqLens.NONE
    if level is not HostSeqLens.EXACT or rig.device == "cuda":
        # A wrong length may end in a fault of the real device, after which nothing runs on it.
        return None
    if all(_is_same(rig, case, HostSeqLens.NONE) for case in cases):
        where = describe_reads(reads.of(names)[:1], rig.subject.root)
        return f"reads {where}, and outputs are the same without it", HostSeqLens.NONE
    if all(_is_same(rig, case, HostSeqLens.EXACT) for case in cases):
        return "outputs are the same with a loose bound in its place", HostSeqLens.UPPER_BOUND
    return None


def _is_same(rig: Rig, case: Case, level: HostSeqLens) -> bool:
    """Return whether nothing in place of the lengths, or a loose bound, changes no output."""
    scenes = scenes_of(rig.subject, case)
    bounds = None if level is HostSeqLens.NONE else loose_bounds(scenes[0], case)
    expected = run_with_lengths(rig, scenes, HostSeqLens.EXACT)
    try:
        found = run_with_lengths(rig, scenes, level, bounds=bounds)
    except Exception:  # noqa: BLE001 - an error shows that they are needed
        return False
    return rig.difference(found, expected, scenario_of(case)) is None


MIRROR_READ = Check(
    about=CATALOG["mirror-read"],
    excuse=partial(_excuse, _ASKED, "it claims NONE: nothing is asked for"),
    cases=lambda subject, effort: relayed_cases("mirror-read", subject, effort, *_ASKED),
    run=_run_read,
    hints=_hints_read,
)


def _excuse_context(subject: Subject) -> str | None:
    if subject.claim("max_context_len_known") is not True:
        return "it does not claim max_context_len_known"
    return _excuse(_WITHOUT, "it claims EXACT: buffers may be sized by the mirror", subject)


def _cases_context(subject: Subject, effort: Effort) -> Iterable[Case]:
    narrow = relayed_scenarios(subject, *_WITHOUT)
    wide = (replace(own, min_context_len=WIDE_CONTEXT) for own in narrow)
    return cases_of("context-bound", wide, effort)


def _run_context(rig: Rig, case: Case) -> Iterator[Fault]:
    level, most = level_of(rig.subject, scenario_of(case)), scenario_of(case).max_context_len
    # Of its batches one has a context that is as long as the page table is wide.
    seeds = (4 * number + max(1, case.seed % 4) for number in count(case.seed))
    drawn = (draw(scenario_of(case), seed) for seed in seeds)
    scene = next(own for own in drawn if int(own.batch.seq_lens.max()) == most)
    run = partial(_outputs, rig, scene)
    what, site = _outcome(rig, case, partial(run, HostSeqLens.EXACT), partial(run, level))
    if what is not None:
        first = int(scene.batch.seq_lens.min())
        what = f"with a context of {most}, which is the page table's width, {what}"
        yield Fault(what=f"behind a forward of {first} tokens, {what}", site=site)


def _outputs(rig: Rig, scene: Scene, level: HostSeqLens) -> Tensor:
    """Run the shortest request alone, then the whole batch, in one new backend.

    returns  [T, Hq, Dv], host  of the whole batch

    Raises:
        Exception: whatever the backend raises.
    """
    with rig.running():
        whole = supplied(scene, level).on(rig.device)
        backend = rig.build(whole.pools)
        shortest = int(scene.batch.seq_lens.argmin())
        alone = supplied(scene.select([shortest]), level).on(rig.device)
        for own in (replace(alone, pools=whole.pools), whole):
            batch = _sized(own.batch, level, whole.pools.req_to_token.shape[1])
            output = replace(own, batch=batch).attend(backend)
        return on_host(output)


def _sized(batch: ForwardBatch, level: HostSeqLens, width: int) -> ForwardBatch:
    """Make the tree mask as large as an engine does that does not know the lengths."""
    if batch.tree_mask is None or level is HostSeqLens.EXACT:
        return batch
    spare = batch.tree_mask.new_ones(batch.num_tokens * width - len(batch.tree_mask))
    return replace(batch, tree_mask=torch.cat([batch.tree_mask, spare]))


CONTEXT_BOUND = Check(
    about=CATALOG["context-bound"], excuse=_excuse_context, cases=_cases_context, run=_run_context
)
