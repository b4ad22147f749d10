"""Prompts that are taken over into rows and pages which a step under way still uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from backend_caps import HostSeqLens
from backend_caps.runtime import Engine, EngineOptions, Handover, Sampling
from backend_caps.simulator import register, simulate
from tests.races.handover_mutants import HANDOVER_MUTANTS
from tests.races.mutation import mutated
from tests.runtime.handovers import (
    PROMPTS,
    Way,
    hand_over_all,
    make_engine,
    outputs,
    write_models,
)

ONE_ROW = EngineOptions(max_running_requests=1, max_total_tokens=64, graph_batch_sizes=(1,))
SAMPLING = Sampling(max_new_tokens=8, stop_token_ids=frozenset(range(0, 97, 3)))
"""A third of the tokens end an output: a step of it is under way, whose token is dropped."""
ABORTED = 2
"""Steps after which whoever runs is given up, time and again."""
FORWARD, TRANSFER = 2, 4
"""Handles of streams; with an exact mirror the second one is the relay's own."""
WAYS = (
    Way(),
    Way(algorithm="EAGLE", topk=2),
    Way(algorithm="EAGLE", level=HostSeqLens.UPPER_BOUND),
    Way(algorithm="STANDALONE", level=HostSeqLens.EXACT),
)

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced
SCHEDULES = ("eager", "lazy", f"starve:{FORWARD}", f"starve:{TRANSFER}", "random:1", "random:2")
PLAYED = [
    *((WAYS[0], schedule) for schedule in SCHEDULES),
    *((way, own) for place, way in enumerate(WAYS[1:]) for own in SCHEDULES[place % 2 :: 2]),
]
"""Every order without drafts, and each with one kind of drafts at least; soaks draw the others."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models of every engine here."""
    register()
    return write_models(tmp_path_factory.mktemp("races"))


@pytest.fixture(scope="module")
def whole(models: Path) -> list[list[int]]:
    """Ask one engine, which does the whole of it, for the tokens."""
    return make_engine(models, Way()).generate(PROMPTS, sampling=SAMPLING)


def _run(engine: Engine, handovers: Sequence[Handover]) -> list[list[int]]:
    """Take all over at once; there is one row, so each enters where another has just left."""
    requests = [engine.take_over(own) for own in handovers]
    step = 0
    while engine.scheduler.has_work:
        engine.step()
        step += 1
        running = next((own for own in requests if own.row), None)
        if running is not None and step % 5 == ABORTED:
            engine.abort(running)
    engine.drain()
    return outputs(requests)


def _play(models: Path, way: Way, schedule: str) -> tuple[list[list[int]], int]:
    """Run the prompts on the simulated device; return the tokens, and how many races there are."""
    handovers = hand_over_all(models, way, PROMPTS, SAMPLING)
    with simulate(schedule, check_races=True) as simulation:
        engine = make_engine(models, way, "decode", options=ONE_ROW, device="sim")
        tokens = _run(engine, handovers)
    return tokens, len(simulation.races)


def _starts(tokens: Sequence[Sequence[int]], whole: Sequence[Sequence[int]]) -> bool:
    """Tell whether all are the start of what one engine makes, and some are all of it."""
    pairs = list(zip(tokens, whole, strict=True))
    return all(own == right[: len(own)] for own, right in pairs) and any(
        own == right for own, right in pairs if len(right) > 1
    )


@pytest.mark.parametrize(("way", "schedule"), PLAYED, ids=str)
def test_prompt_enters_the_row_of_a_step_under_way(
    models: Path, whole: list[list[int]], way: Way, schedule: str
) -> None:
    """In whatever order the streams run, nothing of the request before is mixed in."""
    tokens, num_races = _play(models, way, schedule)

    assert _starts(tokens, whole)
    assert num_races == 0


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("prompt taken over waits for schedule", "eager"),
        ("prompt taken over waits for forward", "lazy"),
        ("rows and slots outlive the prompt's copy", "eager"),
        ("forward waits for the prompt taken over", "eager"),
    ],
)
def test_prompt_taken_over_needs_each_wait(models: Path, name: str, schedule: str) -> None:
    """Without one of them, accesses that nothing orders are found."""
    [mutant] = (own for own in HANDOVER_MUTANTS if own.name == name)

    with mutated(mutant):
        _, num_races = _play(models, Way(), schedule)

    assert num_races > 0
