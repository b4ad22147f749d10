"""Overlapped steps give what plain order gives, in whatever order the device runs their work."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backend_caps.kit.check import EAGER, Case, Check, Effort, Fault, always
from backend_caps.kit.rig import Rig, baseline_of, difference
from backend_caps.kit.rotating import rotated_cases
from backend_caps.kit.scenarios import Forward, scenarios_of
from backend_caps.kit.subject import Subject
from backend_caps.kit.workloads.playing import FORWARD, SCHEDULE, Player
from backend_caps.kit.workloads.sequences import Story, story_of
from backend_caps.simulator import (
    HOST,
    Access,
    OrderPolicy,
    Race,
    Schedule,
    StarvationWarning,
)

_CODE = "races"
_OWN = 3
"""The first stream of a backend's own."""
_ORDERS = (
    Schedule(OrderPolicy.LAZY),
    *(Schedule(OrderPolicy.STARVE, handle) for handle in (SCHEDULE, FORWARD, _OWN)),
)
_MOST_RACES = 2
"""Of one case: more are mostly the same one again."""
_NAMES = {HOST: "the host", SCHEDULE: "the schedule stream", FORWARD: "the forward stream"}


def _cases(subject: Subject, effort: Effort) -> Iterator[Case]:
    """Look for races in plain order, and let each other order meet another scenario a seed.

    All orders of all scenarios would take minutes. The sanitizer needs none: it goes by waits.
    """
    yield from rotated_cases(_CODE, subject, list(Forward), effort, share=2)
    scenarios = list(scenarios_of(subject, list(Forward)))
    for seed in effort.seeds:
        drawn = random.Random(seed).sample(scenarios, len(scenarios))  # noqa: S311 - no secrets
        schedules = (*_ORDERS, Schedule(OrderPolicy.RANDOM, seed))
        for place, schedule in enumerate(schedules):
            scenario = drawn[place % len(drawn)]
            yield Case(check=_CODE, scenario=scenario, schedule=schedule, seed=seed)


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    story = story_of(rig.subject, case.scenario, case.seed)
    expected = _in_plain_order(rig, story)
    found, races = _overlapped(rig, story, case.schedule)
    tolerance = rig.subject.tolerance(case.scenario.dtype)
    for place, turn in enumerate(story.turns):
        differs = difference(found[place], expected[place], tolerance)
        if differs is not None:
            # What comes after it reads what it wrote.
            yield Fault(
                what=f"in turn {place}, {turn.forward.value}, {differs}; what plain order "
                "gives was expected"
            )
            break
    for race in races[:_MOST_RACES]:
        yield _fault_of(race, rig.subject)


def _in_plain_order(rig: Rig, story: Story) -> Sequence[Tensor]:
    """Play a story whose every turn the host waits for."""
    with rig.running():
        whole = baseline_of(lambda: torch.cat([*Player(rig, story).outputs()]))
    return torch.split(whole, [len(turn.scene.q) for turn in story.turns])


def _overlapped(
    rig: Rig, story: Story, schedule: Schedule
) -> tuple[Sequence[Tensor], Sequence[Race]]:
    with warnings.catch_warnings():
        # A backend with fewer streams of its own has none to starve.
        warnings.simplefilter("ignore", StarvationWarning)
        with rig.running(schedule, check_races=schedule == EAGER) as simulation:
            found = Player(rig, story, overlapped=True).outputs()
    races = () if simulation is None else simulation.races
    return found, list({(own.first.site, own.second.site): own for own in races}.values())


def _fault_of(race: Race, subject: Subject) -> Fault:
    sides = race.first, race.second
    own = [side.site for side in sides if subject.owns(side.site.file)]
    first, second = (_told(side) for side in sides)
    return Fault(
        what=f"nothing orders {first}, and {second}; a wait between them was expected",
        site=own[0] if own else None,
    )


def _told(side: Access) -> str:
    kind = "the write" if side.is_write else "the read"
    stream = _NAMES.get(side.stream, f"stream {side.stream}")
    return f"{kind} by {side.operator} on {stream} at {Path(side.site.file).name}:{side.site.line}"


CHECK = Check(
    code=_CODE,
    claims=(),
    title="Steps may overlap.",
    proves="Forwards of growing, coming and leaving requests, launched step after step without a "
    "wait of the host, give what they give in plain order: eagerly, lazily, with each stream "
    "starved, and in random orders; and the stream sanitizer of torch finds no two accesses that "
    "nothing orders.",
    cannot="A race that no order of these stories shows, and what kernels of another library do "
    "on streams that torch does not know. On a real device there is one order, its own.",
    excuse=always,
    cases=_cases,
    run=_run,
)
