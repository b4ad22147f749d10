"""What a launched step is made of, and what it costs to carry."""

from __future__ import annotations

import itertools

import pytest
import torch

from backend_caps.runtime import Sampling
from backend_caps.runtime.stats import StepClock
from tests.runtime.engines import PLAIN_LOOP, make_engine
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle

ENDLESS = Sampling(max_new_tokens=6, stop_token_ids=frozenset())


def _kept(oracle: Oracle, device: torch.device | str, *arguments: str) -> Kept:
    """Run two prompts of 5 and 9 tokens, and keep the steps."""
    kept = Kept()
    engine = make_engine(oracle.folder, *arguments, device=device, observer=kept)
    engine.generate([[5] * 5, [6] * 9], sampling=ENDLESS)
    engine.drain()
    return kept


def test_step_brings_a_token_of_each_request_to_the_host(
    oracle: Oracle, device: torch.device
) -> None:
    """Eight bytes a request cross to the host, and nothing else."""
    kept = _kept(oracle, device)

    assert [own.bytes_to_host for own in kept.steps] == [2 * 8] * 6


def test_decode_step_carries_new_pages_alone_to_the_device(
    oracle: Oracle, device: torch.device
) -> None:
    """Three numbers of each new page cross to the device; where none is needed, nothing does."""
    kept = _kept(oracle, device, "--page-size", "4", *PLAIN_LOOP)

    # Contexts of 5 and 9 tokens get their next page with the 9th and the 13th: the 4th new one.
    assert [own.bytes_to_device for own in kept.steps[1:]] == [0, 0, 0, 2 * 3 * 8, 0]


@pytest.mark.parametrize("arguments", [(), PLAIN_LOOP])
def test_stations_of_a_step_are_passed_in_order(oracle: Oracle, arguments: tuple[str, ...]) -> None:
    """The host's clock never runs backwards from a step's choice to its last token."""
    kept = _kept(oracle, "cpu", *arguments)

    for own in kept.steps:
        stations = _stations(own.clock)
        assert stations == sorted(stations)


def _stations(clock: StepClock) -> list[float]:
    until_launched = [clock.began_s, clock.lengths_s, clock.model_s, clock.model_done_s]
    return [*until_launched, clock.launched_s, clock.result_s, clock.tokens_s, clock.done_s]


def test_overlapped_loop_launches_before_it_waits(oracle: Oracle) -> None:
    """Each step is launched before the host waits for the tokens of the one before."""
    steps = _kept(oracle, "cpu").steps

    for before, after in itertools.pairwise(steps):
        assert after.clock.launched_s <= before.clock.result_s


def test_plain_loop_waits_before_it_builds(oracle: Oracle) -> None:
    """Each step is begun after the tokens of the one before are there."""
    steps = _kept(oracle, "cpu", *PLAIN_LOOP).steps

    for before, after in itertools.pairwise(steps):
        assert before.clock.tokens_s <= after.clock.began_s
