"""The ranks that a launcher has started."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from backend_caps.startup.errors import StartupError
from backend_caps.startup.ranks import RankPlace, joined
from tests.machine import free_port


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
    found = RankPlace.in_environment(environ)

    assert found == place


@pytest.mark.parametrize("rank", ["2", "-1", "one"])
def test_place_that_cannot_be_is_refused(rank: str) -> None:
    """A rank that the job does not have is told with both numbers."""
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


def test_rank_alone_of_two_is_told_in_time() -> None:
    """Where the other rank never comes, this one says so when the deadline has passed."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as processes:
        told = processes.submit(_alone, free_port()).result()

    assert "a group of all ranks within 1 s" in told
