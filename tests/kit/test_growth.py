from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import pytest
import torch
from backend_caps_torch_native import TorchPadded

from backend_caps.kit import Rig, draw
from backend_caps.kit.checks.growth import (
    HeldMemory,
    grown_place,
    growth,
    held_memory,
    quickly_collected,
)
from tests.kit.made import SCENARIO
from tests.kit.specimen import subject_of

POOLS = draw(SCENARIO, 0).pools


class Keeper(TorchPadded):
    """Keeps what it is given."""

    kept: object = None


class Own:
    """What a backend defines itself, without a dictionary."""

    __slots__ = ("kept",)

    def __init__(self, kept: object) -> None:
        self.kept = kept


@lru_cache
def numbers(count: int) -> list[int]:
    """Remember every list."""
    return [0] * count


def _moments(*sizes: tuple[int, int]) -> list[HeldMemory]:
    return [HeldMemory(device=one, host=Counter({"Kept.all": two})) for one, two in sizes]


def _host(backend: object) -> Counter[str]:
    return held_memory(subject_of(Keeper), backend, None, "cpu").host


def _keeping(kept: object) -> int:
    backend = Keeper(POOLS)
    backend.kept = kept
    return _host(backend)["Keeper.kept"]


@pytest.mark.parametrize(
    ("moments", "of_device", "of_host"),
    [
        pytest.param([(5, 7), (5, 7), (5, 7)], 0, 0, id="nothing"),
        pytest.param([(5, 7), (6, 7), (9, 7)], 4, 0, id="device"),
        pytest.param([(5, 7), (6, 7), (6, 7)], 0, 0, id="device, for a while"),
        pytest.param([(5, 7), (5, 8), (5, 20)], 0, 13, id="host"),
        pytest.param([(5, 7), (5, 8), (5, 7)], 0, 0, id="host, now and then"),
    ],
)
def test_growth_is_from_each_moment_to_the_next(
    moments: list[tuple[int, int]], of_device: int, of_host: int
) -> None:
    """What stops growing has a bound."""
    assert growth(_moments(*moments)) == (of_device, of_host)


def test_growth_names_what_keeps_most() -> None:
    """The name that leads to the most that is more is told; none where nothing is more."""
    places = [grown_place(_moments((0, 1), (0, 2), (0, last))) for last in (3, 1)]

    assert places == ["Kept.all", None]


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param([0] * 64, id="list"),
        pytest.param({"a": [0] * 64}, id="mapping"),
        pytest.param("x" * 512, id="text"),
        pytest.param(Own([0] * 64), id="an object of its own"),
        pytest.param(lambda kept=(0,) * 64: kept, id="a function's default"),
    ],
)
def test_gauge_looks_into_what_is_plain_or_its_own(kept: object) -> None:
    """Containers, texts, functions and the backend's own objects count with all they lead to."""
    size = _keeping(kept)

    assert size >= 512


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(torch.zeros(10_000), id="tensor"),
        pytest.param(POOLS, id="another package's object"),
        pytest.param(torch, id="module"),
        pytest.param(Counter, id="type"),
    ],
)
def test_gauge_takes_what_is_others_as_it_stands(kept: object) -> None:
    """A tensor or an object of another package is one thing, and modules and types are none."""
    size = _keeping(kept)

    assert size <= 128


def test_gauge_sees_the_memory_of_a_function() -> None:
    """What `lru_cache` keeps of a backend's own function counts under the function's name."""
    backend = Keeper(POOLS)
    before = _host(backend).total()
    numbers(500)

    assert 8000 <= _host(backend).total() - before < 9000


def test_gauge_names_what_slots_hold_by_the_class() -> None:
    """An object without a dictionary has one name for all that it keeps."""
    held = _host(Own([0] * 64))

    assert held["Own"] >= 512


def test_gauge_counts_blocks_of_the_simulated_device() -> None:
    """On `sim` what the device holds is its live blocks, and on a CPU it is nothing."""
    with Rig(subject=subject_of(Keeper)).running() as simulation:
        keeper = Keeper(POOLS)
        before = held_memory(subject_of(Keeper), keeper, simulation, "sim").device
        more = torch.zeros(4, device="sim")
        found = held_memory(subject_of(Keeper), keeper, simulation, "sim").device - before

    assert (found, len(more)) == (1, 4)


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is left out of collections, as in a process of its own; afterwards as before."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_old_objects_are_left_out_of_collections() -> None:
    """Garbage is collected quickly within the block, and as before behind it."""
    with quickly_collected():
        within = gc.get_freeze_count()

    assert within > 0
    assert gc.get_freeze_count() == 0


def test_what_others_left_out_stays_out() -> None:
    """Where the process has frozen its own, a check that ends does not hand it to collections."""
    gc.freeze()
    before = gc.get_freeze_count()
    with quickly_collected():
        within = gc.get_freeze_count()

    # Frozen objects are still freed by their reference counts, so the number may shrink.
    assert 0 < gc.get_freeze_count() <= within <= before
