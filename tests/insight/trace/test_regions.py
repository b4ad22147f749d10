"""Regions are told by the functions that run."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import cast

import pytest
import torch

from backend_caps import HostSeqLens
from backend_caps.insight.recorder import REGIONS, RegionObserver, observed_regions, profile
from backend_caps.relay import FutureMap


class Told(RegionObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.events: list[str] = []

    def called(self) -> None:
        """Count a call."""
        self.num_calls += 1

    def enter(self, name: str) -> None:
        """Keep a name."""
        self.events.append(name)

    def leave(self) -> None:
        """Keep an end."""
        self.events.append("end")


@pytest.fixture
def future_map() -> FutureMap:
    """A relay whose publish is a region."""
    return FutureMap(pool_size=4, device="cpu", host_seq_lens=HostSeqLens.NONE, speculative=True)


def test_region_is_told_while_its_function_runs(future_map: FutureMap) -> None:
    """A publish is entered and left, and its calls are charged."""
    told = Told()
    with observed_regions(told):
        future_map.publish(torch.tensor([1]), torch.tensor([7]))

    assert told.events == ["publish", "end"]
    assert told.num_calls > 1


def test_another_profiler_is_put_back() -> None:
    """Who profiled the thread before does so afterwards."""
    before = sys.getprofile()
    with observed_regions(Told()):
        pass

    assert sys.getprofile() is before


def test_foreign_code_is_not_charged() -> None:
    """A call of a function that is none of relay and runtime is free."""
    told = Told()
    frame = inspect.currentframe()
    assert frame is not None

    profile(told)(frame, "call", None)

    assert (told.num_calls, told.events) == (0, [])


def test_profile_tells_calls_and_returns(future_map: FutureMap) -> None:
    """A frame of a region's code is entered by its call, charged, and left by its return."""
    told, frames = Told(), list[FrameType]()

    class Peeking:
        @property
        def shape(self) -> torch.Size:
            frame = inspect.currentframe()
            while frame is not None and frame.f_code not in REGIONS:
                frame = frame.f_back
            assert frame is not None
            frames.append(frame)
            return torch.Size([0])

    future_map.publish(torch.empty(0, dtype=torch.int64), cast("torch.Tensor", Peeking()))
    profile(told)(frames[0], "call", None)
    profile(told)(frames[0], "return", None)

    assert (told.num_calls, told.events) == (1, ["publish", "end"])
