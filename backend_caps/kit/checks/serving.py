"""An engine that serves with the backend makes the tokens that its plain loop makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from backend_caps.kit.check import EAGER, Case, Check, Effort, Fault
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.models import small_models
from backend_caps.kit.probes.growth import quickly_collected
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import Forward, Scenario, scenarios_of
from backend_caps.kit.subject import Subject
from backend_caps.kit.workloads.serving import Served, serve, sizes_of
from backend_caps.kit.workloads.traces import ServerTrace, trace_of
from backend_caps.runtime.errors import UnfitBackendError
from backend_caps.simulator import Access, OrderPolicy, Race, Schedule

_FORWARDS = (Forward.DECODE, Forward.MIXED, Forward.VERIFY, Forward.TREE)
_FORWARD_STREAM = 2
"""The handle of the stream that models run on, in an engine of its own."""
_MOST_RACES = 2


def _excuse(subject: Subject) -> str | None:
    dtypes = {scenario.dtype for scenario in scenarios_of(subject, _FORWARDS)}
    if dtypes - {"float32"}:
        return "it does not take float32, and rounder numbers may choose other tokens"
    return None


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Take each forward at one page size and in one order a seed, the next ones at the next."""
    by_forward: dict[Forward, list[Scenario]] = {}
    for scenario in scenarios_of(subject, _FORWARDS):
        by_forward.setdefault(scenario.forward, []).append(scenario)
    for seed in effort.seeds:
        orders = (
            EAGER,
            Schedule(OrderPolicy.LAZY),
            Schedule(OrderPolicy.STARVE, _FORWARD_STREAM),
            Schedule(OrderPolicy.RANDOM, seed),
        )
        # Half of the forwards a seed: an engine takes as long as twenty batches.
        for place, of_forward in list(enumerate(by_forward.values()))[seed % 2 :: 2]:
            scenario = of_forward[(place + seed) // 2 % len(of_forward)]
            yield Case(
                check="serving",
                scenario=replace(scenario, num_heads=2, num_kv_heads=1),
                schedule=orders[(place + seed // 2) % len(orders)],
                seed=seed,
            )


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has an engine"
    trace = trace_of(rig.subject, case.scenario, case.seed)
    settings = trace.speculation
    algorithm = None if settings is None else settings.algorithm
    # Each capture of a graph collects garbage.
    with (
        quickly_collected(),
        small_models(algorithm, sizes=sizes_of(case.scenario)) as models,
    ):

        def served(own: ServerTrace) -> Served:
            return serve(rig.subject, own, models, rig.device)

        right = replace(_baseline(rig, lambda: served(trace.undrafted)), accepted={})
        if settings is not None and settings.has_draft_model:
            drafted = _baseline(rig, lambda: served(trace.plainly))
            right = replace(right, accepted=drafted.accepted)
        with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
            found = _fitting(lambda: served(trace))
        races = () if simulation is None else simulation.races
    yield from islice(_faults(trace, found, right), 1)
    yield from islice(_own_races(rig.subject, races), _MOST_RACES)


def _baseline(rig: Rig, run: Callable[[], Served]) -> Served:
    try:
        with rig.running():
            return run()
    except Exception as error:  # a plugin raises what it likes
        raise BaselineError(problem=f"{type(error).__name__}: {error}") from error


def _fitting(run: Callable[[], Served]) -> Served:
    """Serve, unless the engine refuses what the backend itself declares that it does not take."""
    try:
        return run()
    except UnfitBackendError as error:
        raise BaselineError(problem=str(error)) from error


def _faults(trace: ServerTrace, found: Served, right: Served) -> Iterator[Fault]:
    """Compare with the plain loop: tokens, how many of each draft are accepted, what is free."""
    how = f"served {trace.told}, {found.num_retracted} retractions"
    for place, own in enumerate(trace.asked):
        made, expected = found.outputs[place], right.outputs[place]
        if made != (expected if own.aborted_at is None else expected[: len(made)]):
            what = f"request {place} got the tokens {made}; the plain loop makes {expected}"
            yield Fault(what=f"{how}, {what}")
    for number, of_request in found.accepted.items():
        known = right.accepted.get(number, {})
        for start, count in of_request.items():
            if known.get(start, count) != count:
                what = (
                    f"request {number} got {count} tokens of the draft behind its token {start}; "
                    f"in the plain loop the same draft gives {known[start]}"
                )
                yield Fault(what=f"{how}, {what}")
    if found.left_over:
        yield Fault(what=f"{how}, {' and '.join(found.left_over)} did not come back")


def _own_races(subject: Subject, races: Iterable[Race]) -> Iterator[Fault]:
    """List races in which a line of the backend takes part; others are not its own."""
    for race in {(own.first.site, own.second.site): own for own in races}.values():
        sides = race.first, race.second
        own = [side.site for side in sides if subject.owns(side.site.file)]
        if own:
            first, second = map(_told, sides)
            what = f"nothing orders {first}, and {second}; a wait between them was expected"
            yield Fault(what=what, site=own[0])


def _told(side: Access) -> str:
    kind = "the write" if side.is_write else "the read"
    return f"{kind} by {side.operator} at {Path(side.site.file).name}:{side.site.line}"


CHECK = Check(
    code="serving",
    claims=(),
    title="An engine serves with it.",
    proves="The engine of this project, overlapped, with chunked and mixed prompts, a KV cache "
    "too small for all requests, so that some are retracted and run again from their prompts, "
    "graphs, drafts and halves of batches as they are claimed, and now and then two objects for "
    "prompts and steps, makes the tokens that its plain loop makes with the same backend, accepts "
    "as much of each draft, and gets every row and page back, in several orders of the device's "
    "work.",
    cannot="What tokens do not show: an error too small to choose another one. It serves in "
    "float32 alone: the two loops make other batches, in which a backend may add up in another "
    "order. In bfloat16 that alone chose other tokens in 4 of 120 traces of an honest backend, in "
    "float32 in none of 60.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    after=(
        "numerics",
        "roles",
        "mirror-absent",
        "mirror-bound",
        "context-bound",
        "sync-free-prepare",
        "inputs-untouched",
        "padding-harmless",
        "batches-apart",
        "replay",
        "metadata",
        "addresses",
        "reads-end",
        "races",
        "two-batch",
    ),
)
