"""Rehearsed steps through a FutureMap, the place of a rank, and the log of a plan."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context

import pytest

from backend_caps import HostSeqLens, RuleSet, resolve
from backend_caps.relay import DraftShape, FutureMap
from backend_caps.report.plans import StepDocument
from backend_caps.startup.configure import log_plan
from backend_caps.startup.errors import StartupError
from backend_caps.startup.ranks import RankPlace, joined
from backend_caps.startup.rehearsal import rehearse
from tests.machine import free_port
from tests.unit.building import READS, at_rank, flags, use

DRAFT = DraftShape(topk=2, accept_tokens=3)


def _steps(mode: HostSeqLens, *, speculative: bool = True) -> list[StepDocument]:
    draft = DRAFT if speculative else None
    future_map = FutureMap(
        pool_size=8,
        device="cpu",
        host_seq_lens=mode,
        speculative=speculative,
        draft=draft,
        debug=True,
    )
    return list(rehearse(future_map, num_steps=4, draft=draft))


@pytest.mark.parametrize("mode", list(HostSeqLens))
def test_rehearsal_accepts_what_a_step_can(mode: HostSeqLens) -> None:
    """From the prompts on, each length grows by one to the most that a step accepts."""
    steps = _steps(mode)

    grown = {
        later - earlier
        for before, after in pairwise(steps)
        for earlier, later in zip(before.seq_lens, after.seq_lens, strict=True)
    }
    assert steps[0].seq_lens == [5, 3, 7]
    assert grown <= {1, 2, 3}


def test_rehearsal_without_speculation_adds_one() -> None:
    """Each step adds one token, on the device and in the mirror, from those stashed before."""
    steps = _steps(HostSeqLens.NONE, speculative=False)

    assert [step.seq_lens for step in steps] == [[5, 3, 7], [6, 4, 8], [7, 5, 9], [8, 6, 10]]
    assert [step.seq_lens_cpu for step in steps] == [step.seq_lens for step in steps]
    assert {step.bytes_to_host for step in steps} == {0}
    assert all(100 <= token < 1000 for step in steps for token in step.input_ids)
    assert len({tuple(step.input_ids) for step in steps}) == len(steps)


def test_rehearsal_mirrors_exactly() -> None:
    """With exact lengths the mirror is the device's lengths, and they cross."""
    steps = _steps(HostSeqLens.EXACT)

    assert [step.seq_lens_cpu for step in steps] == [step.seq_lens for step in steps]
    assert {step.bytes_to_host for step in steps} == {24}


def test_rehearsal_bounds_from_above() -> None:
    """With upper bounds no length is above its bound, and nothing crosses."""
    steps = _steps(HostSeqLens.UPPER_BOUND)

    bounds = [step.seq_lens_cpu_upper_bound or () for step in steps]
    lengths = [step.seq_lens for step in steps]
    assert all(
        low <= high
        for of_step, bound in zip(lengths, bounds, strict=True)
        for low, high in zip(of_step, bound, strict=True)
    )
    assert {step.bytes_to_host for step in steps} == {0}


def test_line_names_the_rank_and_machine_of_a_cause(caplog: pytest.LogCaptureFixture) -> None:
    """Who reads one rank's log sees which rank's backend has forced a value."""
    caplog.set_level(logging.INFO, "backend_caps")
    plan = at_rank(
        resolve([use("needy", READS)], flags(), rules=RuleSet.builtin("sglang-0.5.13")), 2
    )
    ranked = plan.with_values(
        lambda _, own: replace(
            own, causes=tuple(replace(cause, host="node-b") for cause in own.causes)
        )
    )

    log_plan(ranked)

    assert "host_seq_lens=exact (backend needy on rank 2, node-b)" in caplog.messages[0]


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        pytest.param({}, None, id="no launcher"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "2"}, RankPlace(rank=1, size=2), id="a rank"),
        pytest.param(
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"},
            RankPlace(rank=5, size=8, local_rank=1),
            id="a rank of a machine",
        ),
    ],
)
def test_place_is_in_the_environment(environ: dict[str, str], place: RankPlace | None) -> None:
    """Which rank a process is stands in its environment."""
    assert RankPlace.in_environment(environ) == place


@pytest.mark.parametrize("rank", ["2", "-1", "one"])
def test_place_that_cannot_be_is_refused(rank: str) -> None:
    """A rank that the job does not have is reported with both numbers."""
    with pytest.raises(StartupError, match=f"rank {rank} of 2"):
        RankPlace.in_environment({"RANK": rank, "WORLD_SIZE": "2"})


def _alone(port: int) -> str:
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    os.environ.update(place)
    try:
        with joined(RankPlace(rank=0, size=2), deadline_s=1.0):
            return "came together"
    except StartupError as error:
        return str(error)


def test_rank_alone_of_two_is_reported_in_time() -> None:
    """Where the other rank never comes, this one says so when the deadline has passed."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as processes:
        told = processes.submit(_alone, free_port()).result()

    assert "a group of all ranks within 1 s" in told
