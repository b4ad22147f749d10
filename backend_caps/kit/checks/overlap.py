"""Overlapped steps, of a story and of an engine that serves, give what plain order gives."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from backend_caps.kit import BaselineError, Case, Effort, Fault, Forward, Rig, Subject, scenarios_of
from backend_caps.kit.check import EAGER, Check, rotated_cases, scenario_of
from backend_caps.kit.checks.growth import quickly_collected
from backend_caps.kit.models import small_models
from backend_caps.kit.probes.playback import FORWARD, SCHEDULE, Player
from backend_caps.kit.probes.server_traces import (
    ServedTrace,
    ServerTrace,
    serve,
    sizes_of,
    trace_of,
)
from backend_caps.kit.probes.stories import Story, story_of
from backend_caps.kit.rig import baseline_of
from backend_caps.kit.scenarios import scenarios_by_forward
from backend_caps.report.check_catalog import CATALOG
from backend_caps.runtime.errors import UnfitBackendError
from backend_caps.simulator import HOST, Access, OrderPolicy, Race, Schedule

_OWN = 3
"""The first stream of a backend's own."""
_ORDERS = (
    Schedule(OrderPolicy.LAZY),
    *(Schedule(OrderPolicy.STARVE, handle) for handle in (SCHEDULE, FORWARD, _OWN)),
)
_MOST_RACES = 2
"""Of one case: more are mostly the same one again."""
_NAMES = {HOST: "the host", SCHEDULE: "the schedule stream", FORWARD: "the forward stream"}


def _cases_races(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Look for races in plain order, and let each other order meet another scenario a seed.

    All orders of all scenarios would take minutes. The sanitizer needs none: it goes by waits.
    """
    yield from rotated_cases("races", subject, list(Forward), effort, share=2)
    scenarios = list(scenarios_of(subject, list(Forward)))
    for seed in effort.seeds:
        drawn = random.Random(seed).sample(scenarios, len(scenarios))  # noqa: S311 - no secrets
        schedules = (*_ORDERS, Schedule(OrderPolicy.RANDOM, seed))
        for place, schedule in enumerate(schedules):
            scenario = drawn[place % len(drawn)]
            yield Case(check="races", scenario=scenario, schedule=schedule, seed=seed)


def _run_races(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    story = story_of(rig.subject, scenario, case.seed)
    expected = _in_plain_order(rig, story)
    with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
        found = Player(rig, story, overlapped=True).outputs()
    for place, turn in enumerate(story.turns):
        if (differs := rig.difference(found[place], expected[place], scenario)) is not None:
            # What comes after it reads what it wrote.
            yield Fault(
                what=f"in turn {place}, {turn.forward.value}, {differs}; what plain order "
                "gives was expected"
            )
            break
    races = () if simulation is None else simulation.races
    yield from islice(_race_faults(races, rig.subject, _NAMES), _MOST_RACES)


def _in_plain_order(rig: Rig, story: Story) -> Sequence[Tensor]:
    """Play a story whose every turn the host waits for."""
    with rig.running():
        whole = baseline_of(lambda: torch.cat([*Player(rig, story).outputs()]))
    return torch.split(whole, [len(turn.scene.q) for turn in story.turns])


def _race_faults(
    races: Iterable[Race], subject: Subject, names: Mapping[int, str] | None = None
) -> Iterator[Fault]:
    """List races, each pair of lines once.

    Args:
        races: those of a run.
        subject: whose lines are named.
        names: of streams, for races of any code; None: only races with a line of the backend.
    """
    for race in {(own.first.site, own.second.site): own for own in races}.values():
        sides = race.first, race.second
        site = next((side.site for side in sides if subject.owns(side.site.file)), None)
        if site is not None or names is not None:
            first, second = (_access_text(side, names) for side in sides)
            what = f"nothing orders {first}, and {second}; a wait between them was expected"
            yield Fault(what=what, site=site)


def _access_text(side: Access, names: Mapping[int, str] | None) -> str:
    kind = "the write" if side.is_write else "the read"
    stream = "" if names is None else f" on {names.get(side.stream, f'stream {side.stream}')}"
    return f"{kind} by {side.operator}{stream} at {Path(side.site.file).name}:{side.site.line}"


RACES = Check(about=CATALOG["races"], cases=_cases_races, run=_run_races)


_FORWARDS = (Forward.DECODE, Forward.MIXED, Forward.VERIFY, Forward.TREE)
_FORWARD_STREAM = 2
"""The handle of the stream that models run on, in an engine of its own."""


def _excuse_serving(subject: Subject) -> str | None:
    is_rounder = any(own.dtype != "float32" for own in scenarios_of(subject, _FORWARDS))
    reason = "it does not take float32, and rounder numbers may choose other tokens"
    return reason if is_rounder else None


def _cases_serving(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Take each forward at one page size and in one order a seed, the next ones at the next."""
    by_forward = scenarios_by_forward(subject, _FORWARDS)
    for seed in effort.seeds:
        orders = (
            EAGER,
            Schedule(OrderPolicy.LAZY),
            Schedule(OrderPolicy.STARVE, _FORWARD_STREAM),
            Schedule(OrderPolicy.RANDOM, seed),
        )
        # Half of the forwards a seed: an engine takes as long as twenty batches.
        for place, of_forward in list(enumerate(by_forward))[seed % 2 :: 2]:
            scenario = of_forward[(place + seed) // 2 % len(of_forward)]
            yield Case(
                check="serving",
                scenario=replace(scenario, num_heads=2, num_kv_heads=1),
                schedule=orders[(place + seed // 2) % len(orders)],
                seed=seed,
            )


def _run_serving(rig: Rig, case: Case) -> Iterator[Fault]:
    scenario = scenario_of(case)
    trace = trace_of(rig.subject, scenario, case.seed)
    # Each capture of a graph collects garbage.
    with quickly_collected(), small_models(trace.algorithm, sizes=sizes_of(scenario)) as models:

        def served_plainly(own: ServerTrace) -> ServedTrace:
            with rig.running():
                return serve(rig, own, models)

        right = replace(baseline_of(lambda: served_plainly(trace.undrafted)), accepted={})
        if trace.has_draft_model:
            drafted = baseline_of(lambda: served_plainly(trace.plainly))
            right = replace(right, accepted=drafted.accepted)
        with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
            try:
                found = serve(rig, trace, models)
            except UnfitBackendError as error:  # as the backend itself declares
                raise BaselineError(problem=str(error)) from error
        races = () if simulation is None else simulation.races
    yield from islice(_faults(trace, found, right), 1)
    yield from islice(_race_faults(races, rig.subject), _MOST_RACES)


def _faults(trace: ServerTrace, found: ServedTrace, right: ServedTrace) -> Iterator[Fault]:
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
                what = f"request {number} got {count} tokens of the draft behind its token {start}"
                plainly = f"in the plain loop the same draft gives {known[start]}"
                yield Fault(what=f"{how}, {what}; {plainly}")
    if found.left_over:
        yield Fault(what=f"{how}, {' and '.join(found.left_over)} did not come back")


SERVING = Check(
    about=CATALOG["serving"], excuse=_excuse_serving, cases=_cases_serving, run=_run_serving
)
