"""Which graphs of a backend are tried, and the batches that replay them.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

from torch import Tensor

from backend_caps.kit.check import Case, Effort, Fault, replayed_forwards
from backend_caps.kit.probes.graph_probe import Graphs
from backend_caps.kit.rig import Rig, difference
from backend_caps.kit.scenarios import Forward, Scenario, dice_for, draw_requests, forwards_of
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.relay.streams import DEVICE_TRAITS
from backend_caps.simulator import OrderPolicy, Schedule, Simulation, StarvationWarning

_Level = TypeVar("_Level")
GRAPHED = (Forward.DECODE, Forward.VERIFY, Forward.TREE, Forward.MIXED)
"""Forwards whose graphs are tried: those of a draft model bring batches of the same shapes."""
LAZY = Schedule(OrderPolicy.LAZY)
"""The order that shows most: nothing runs before the host waits for it."""
NUM_STREAMS = 4
"""The default one, the forward's, the scheduler's, and one of the backend's own."""
HINTED = Effort(seeds=range(2))
"""How much is tried before more is suggested than is claimed."""
# Each has the same graph twice in a row, full ones and padded ones, small after large and large
# after small.
_STORIES = ((4, 3, 1, 1, 2, 4), (1, 4, 4, 2, 3, 1), (2, 1, 3, 4, 4, 2), (3, 4, 2, 1, 1, 3))


def no_graphs(device: str) -> str | None:
    """Return why checks of graphs cannot run on a device; None: they can."""
    return None if DEVICE_TRAITS[device].has_graphs else f"no graphs on {device}"


def replayed_of(subject: Subject) -> tuple[Forward, ...]:
    """List the forwards of which a backend claims that their graphs may be replayed."""
    return tuple(own for own in replayed_forwards(subject) if own in GRAPHED)


def unreplayed(subject: Subject) -> str | None:
    """Excuse a backend that claims no graph."""
    return None if replayed_of(subject) else "it claims no kind of batch in graph_replay"


def graphed_of(subject: Subject) -> tuple[Forward, ...]:
    """List the forwards of which graphs can be tried."""
    return tuple(own for own in forwards_of(subject) if own in GRAPHED)


def story(scenario: Scenario, seed: int, counts: Sequence[int] | None = None) -> Sequence[Scene]:
    """Draw batches that come one after the other.

    Args:
        scenario: what they are made of.
        seed: what they are drawn by.
        counts: requests of each; None: as the seed says.
    """
    counts = _STORIES[seed % len(_STORIES)] if counts is None else counts
    dice = dice_for(scenario, seed)
    return [
        draw_requests(scenario, dice, count, setting_seed=16 * seed + place)
        for place, count in enumerate(counts)
    ]


def longest(scenario: Scenario, seed: int, count: int) -> Scene:
    """Draw batches of so many requests, and take the one with the longest context."""
    drawn = story(scenario, seed, [count] * 3)
    return max(drawn, key=lambda scene: int(scene.batch.seq_lens.max()))


def wrong_replay(graphs: Graphs, scenes: Sequence[Scene], expected: Sequence[Tensor]) -> str | None:
    """Replay one scene after the other, and say what is wrong with the first that is; or None.

    No replay waits for the one before, as in an engine that runs ahead of its results.

    expected  [T, Hq, Dv], host, for each scene
    """
    there = [graphs.bring(scene) for scene in scenes]
    left = [graphs.launch(scene) for scene in there]
    for number, (scene, eager, own) in enumerate(zip(scenes, expected, left, strict=True), 1):
        wrong = difference(own.attended(), eager, graphs.tolerance)
        slots = own.strays(scene)
        if slots and wrong is None:
            wrong = f"it wrote to slots {slots}, which are not the batch's"
        if wrong is not None:
            size = f"of {scene.batch.batch_size} requests"
            return f"replay {number}, {size}, is not what its eager run is: {wrong}"
    return None


@contextmanager
def ordered(
    rig: Rig, schedule: Schedule, *, check_races: bool = False
) -> Iterator[Simulation | None]:
    """Run in an order that may starve a stream of the backend's own, where it has one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StarvationWarning)
        with rig.running(schedule, check_races=check_races) as simulation:
            yield simulation


def reordered(cases: Sequence[Case], schedules: Iterable[Schedule], seed: int) -> Iterator[Case]:
    """Give each schedule one of the cases, another one at the next seed."""
    for place, schedule in enumerate(schedules):
        yield replace(cases[(seed + place) % len(cases)], schedule=schedule)


def first_right(
    levels: Iterable[_Level],
    run: Callable[[_Level, Rig, Case], Iterable[Fault]],
    rig: Rig,
    cases: Sequence[Case],
) -> _Level | None:
    """Return the first level at which no case finds anything."""
    return next(
        (own for own in levels if all(is_right(partial(run, own), rig, case) for case in cases)),
        None,
    )


def is_right(run: Callable[[Rig, Case], Iterable[Fault]], rig: Rig, case: Case) -> bool:
    """Return whether a case finds nothing and raises nothing."""
    try:
        return not list(run(rig, case))
    except Exception:  # noqa: BLE001 - a plugin raises what it likes
        return False


def listed(forwards: Iterable[Forward]) -> str:
    """Name forwards."""
    return ", ".join(own.value for own in forwards)
