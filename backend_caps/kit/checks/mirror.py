"""Checks of host lengths: absent ones, loose bounds, unread ones, and buffers sized without them.

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
from backend_caps.kit.check import counted, long_cases, spread_cases
from backend_caps.kit.probes.seq_lens import (
    BOUND,
    MIRROR,
    PromptedBatch,
    Reads,
    describe_reads,
    level_of,
    loose_bounds,
    relayed_cases,
    relayed_scenarios,
)
from backend_caps.kit.rig import baseline_of, supplied
from backend_caps.kit.scenes import Scene
from backend_caps.report.check_catalog import CATALOG, WIDE_CONTEXT
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.simulator import Site

_BOUND = HostSeqLens.UPPER_BOUND
_WITH_LENGTHS = HostSeqLens.EXACT, _BOUND
_WITHOUT_MIRROR = HostSeqLens.NONE, _BOUND


def _excuse(levels: Sequence[HostSeqLens], reason: str, subject: Subject) -> str | None:
    """Excuse a backend that claims none of the levels in any forward of the relay loop."""
    return None if any(relayed_scenarios(subject, *levels)) else reason


def _outcome(
    rig: Rig, case: Case, right: Callable[[], Tensor], run: Callable[[], Tensor]
) -> tuple[str | None, Site | None]:
    """Describe how a run raised, or differs from the right one, and its line; None: neither."""
    expected = baseline_of(right)
    try:
        output = run()
    except Exception as error:  # noqa: BLE001 - a plugin raises what it likes
        raised = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
        return f"it raised {raised}", rig.subject.line_in(error.__traceback__)
    return rig.difference(output, expected, case.batch_scenario), None


def _run_absent(rig: Rig, case: Case) -> Iterator[Fault]:
    forward, prompted = case.batch_scenario.forward, PromptedBatch.of(rig, case)
    level, run = level_of(rig.subject, case.batch_scenario), prompted.run
    what, site = _outcome(rig, case, partial(run, HostSeqLens.EXACT), partial(run, level))
    if what is not None:
        watch, cause = Reads(rig.subject), ""
        with suppress(Exception):  # reads before an exception count, too
            run(HostSeqLens.EXACT, reads=watch)
        behind = "" if prompted.prompts is None else ", behind prompts that had it,"
        if reads := watch.of(MIRROR | BOUND if level is HostSeqLens.NONE else MIRROR):
            use, root = f"{forward.role.value}/{forward.phase.value}", rig.subject.root
            cause = f"; where it is there, {use} reads {describe_reads(reads, root)}"
        site = site or next((read.site for read in reads), None)
        yield Fault(what=f"without the mirror{behind} {what}{cause}", site=site)


MIRROR_ABSENT = Check(
    about=CATALOG["mirror-absent"],
    excuse=partial(_excuse, _WITHOUT_MIRROR, "it claims EXACT: the mirror is there"),
    cases=lambda subject, effort: relayed_cases("mirror-absent", subject, effort, *_WITHOUT_MIRROR),
    run=_run_absent,
)


def _cases_bound(subject: Subject, effort: Effort) -> Iterable[Case]:
    cases = list(relayed_cases("mirror-bound", subject, effort, _BOUND))
    return [*cases, *long_cases(cases, effort)]


def _run_bound(rig: Rig, case: Case) -> Iterator[Fault]:
    prompted = PromptedBatch.of(rig, case)
    bounds, reads = loose_bounds(prompted.batch, case), Reads(rig.subject)
    run = partial(prompted.run, _BOUND)
    what, site = _outcome(rig, case, run, partial(run, bounds=bounds, reads=reads))
    if what is not None:
        site = site or next((read.site for read in reads.of(BOUND)), None)
        lengths = prompted.batch.batch.seq_lens.tolist()
        yield Fault(what=f"with bounds {bounds.tolist()} of lengths {lengths} {what}", site=site)


MIRROR_BOUND = Check(
    about=CATALOG["mirror-bound"],
    excuse=partial(_excuse, (_BOUND,), "it does not claim UPPER_BOUND: no bound is read"),
    cases=_cases_bound,
    run=_run_bound,
)


def _run_read(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run a case with the claimed lengths, for the hints; other checks compare the outputs."""
    level = level_of(rig.subject, case.batch_scenario)
    baseline_of(lambda: PromptedBatch.of(rig, case).run(level))
    yield from ()


def _hints_read(subject: Subject, cases: Sequence[Case], rig: Rig) -> Iterator[Hint]:
    """Suggest a weaker level for each claimed one; conditions may claim several."""
    is_declared = subject.declaration.capabilities.host_seq_lens is not UNDECLARED
    claimed = "declared" if is_declared else "not declared, so"
    is_known = subject.claim("max_context_len_known") is True
    beside = "" if is_known else ", which max_context_len_known=True has to come with"
    for level in _WITH_LENGTHS:
        of_level = [case for case in cases if level_of(subject, case.batch_scenario) is level]
        found = None
        with suppress(Exception):  # these cases ran before, so a flaky backend gets no hint
            found = _candidate(rig, level, of_level) if of_level else None
        if found is not None:
            observed, candidate = found
            yield Hint(
                claim="host_seq_lens",
                what=f"{claimed} {level.name}; "
                f"{observed} {counted(of_level)}; candidate for {candidate.name}{beside}",
            )


def _candidate(
    rig: Rig, level: HostSeqLens, cases: Sequence[Case]
) -> tuple[str, HostSeqLens] | None:
    """Return the observation, and the level that suffices; None where the claim is needed.

    A bound costs no host wait, so a claim of UPPER_BOUND is left where a bound is read.
    """
    reads, names = Reads(rig.subject), MIRROR if level is HostSeqLens.EXACT else BOUND
    for case in cases:
        PromptedBatch.of(rig, case).run(level, reads=reads)
        if reads.of(names):
            break
    else:
        return "never read", HostSeqLens.NONE
    if level is not HostSeqLens.EXACT or rig.device == "cuda":
        # A wrong length may cause an illegal access, after which a CUDA context is unusable.
        return None
    if all(_is_same(rig, case, HostSeqLens.NONE) for case in cases):
        where = describe_reads(reads.of(names)[:1], rig.subject.root)
        return f"reads {where}, and outputs are the same without it", HostSeqLens.NONE
    if all(_is_same(rig, case, HostSeqLens.EXACT) for case in cases):
        return "outputs are the same with a loose bound in its place", HostSeqLens.UPPER_BOUND
    return None


def _is_same(rig: Rig, case: Case, level: HostSeqLens) -> bool:
    """Return whether the output is the same without lengths, or with loose bounds for them."""
    prompted = PromptedBatch.of(rig, case)
    bounds = None if level is HostSeqLens.NONE else loose_bounds(prompted.batch, case)
    expected = prompted.run(HostSeqLens.EXACT)
    try:
        output = prompted.run(level, bounds=bounds)
    except Exception:  # noqa: BLE001 - an error shows that the lengths are needed
        return False
    return rig.difference(output, expected, case.batch_scenario) is None


MIRROR_READ = Check(
    about=CATALOG["mirror-read"],
    excuse=partial(_excuse, _WITH_LENGTHS, "it claims NONE: nothing is asked for"),
    cases=lambda subject, effort: relayed_cases("mirror-read", subject, effort, *_WITH_LENGTHS),
    run=_run_read,
    hints=_hints_read,
)


def _excuse_context(subject: Subject) -> str | None:
    if subject.claim("max_context_len_known") is not True:
        return "it does not claim max_context_len_known"
    return _excuse(_WITHOUT_MIRROR, "it claims EXACT: buffers may be sized by the mirror", subject)


def _cases_context(subject: Subject, effort: Effort) -> Iterable[Case]:
    narrow = relayed_scenarios(subject, *_WITHOUT_MIRROR)
    wide = (replace(scenario, min_context_len=WIDE_CONTEXT) for scenario in narrow)
    return spread_cases("context-bound", wide, subject, effort)


def _run_context(rig: Rig, case: Case) -> Iterator[Fault]:
    level, most = level_of(rig.subject, case.batch_scenario), case.batch_scenario.max_context_len
    # Draws until a batch has a context that is as long as the page table is wide.
    seeds = (4 * number + max(1, case.seed % 4) for number in count(case.seed))
    drawn = (draw(case.batch_scenario, seed) for seed in seeds)
    scene = next(each for each in drawn if int(each.batch.seq_lens.max()) == most)
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
        Exception: any that the backend raises.
    """
    with rig.running():
        whole = supplied(scene, level).on(rig.device)
        backend = rig.build(whole.pools)
        shortest = int(scene.batch.seq_lens.argmin())
        alone = supplied(scene.select([shortest]), level).on(rig.device)
        for each in (replace(alone, pools=whole.pools), whole):
            batch = _sized(each.batch, level, whole.pools.req_to_token.shape[1])
            output = replace(each, batch=batch).attend(backend)
        return on_host(output)


def _sized(batch: ForwardBatch, level: HostSeqLens, width: int) -> ForwardBatch:
    """Enlarge the tree mask to the size that an engine without host lengths allocates."""
    if batch.tree_mask is None or level is HostSeqLens.EXACT:
        return batch
    spare = batch.tree_mask.new_ones(batch.num_tokens * width - len(batch.tree_mask))
    return replace(batch, tree_mask=torch.cat([batch.tree_mask, spare]))


CONTEXT_BOUND = Check(
    about=CATALOG["context-bound"], excuse=_excuse_context, cases=_cases_context, run=_run_context
)
