from __future__ import annotations

from dataclasses import astuple

import pytest
import torch

from backend_caps.runtime.stats import NoObserver, StepClock, now_s, total_seq_lens
from tests.runtime.made_steps import clock, step
from tests.runtime.memories import make_batch, make_memory


@pytest.mark.parametrize(("waits_for_lengths", "num_waits"), [(False, 1), (True, 2)])
def test_planned_waits_are_for_tokens_and_for_lengths(
    waits_for_lengths: bool,
    num_waits: int,
) -> None:
    """The host always waits for the tokens, and for lengths where the plan says so."""
    assert step(waits_for_lengths=waits_for_lengths).planned_waits == num_waits


def test_host_s_is_the_launch_without_the_model_and_the_processing() -> None:
    """Of 8 s to the launch, the model's 4 s are not counted; the 1 s behind the tokens is."""
    assert step(began_s=100.0).host_s == pytest.approx(5.0)


def test_host_s_is_without_the_wait_for_lengths() -> None:
    """Where the host waited for lengths, the half second of that is none of its own."""
    assert step(waits_for_lengths=True).host_s == pytest.approx(4.5)


def test_wait_s_is_the_time_until_the_tokens_came() -> None:
    """The host waited from when it asked for the tokens to when it had them."""
    assert step(began_s=100.0).wait_s == pytest.approx(0.5)


def test_overlap_ratio_is_the_share_of_the_flight_without_waiting() -> None:
    """Of 2 s in flight 0.5 s were waited: three quarters were overlapped."""
    assert step().overlap_ratio == pytest.approx(0.75)


def test_overlap_ratio_of_no_time_is_nothing() -> None:
    """A step whose tokens were there at its launch has nothing to overlap with."""
    own = step()
    own.clock.tokens_s = own.clock.result_s = own.clock.launched_s

    assert own.overlap_ratio == 0.0


def test_clock_begins_before_everything_else() -> None:
    """A new clock has its begin, and no other station yet."""
    assert astuple(StepClock(5.0)) == (5.0, *[0] * 9)
    assert clock(5.0).began_s == 5.0


def test_now_never_goes_back() -> None:
    """The host's clock is one for differences."""
    assert now_s() <= now_s()


def test_no_observer_lets_steps_pass() -> None:
    """A step can be told to nobody."""
    NoObserver().observe(step())


def test_total_seq_lens_sums_the_mirror() -> None:
    """With a mirror, the total is the mirror's."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 3, 4)
    batch.seq_lens_cpu = torch.tensor([10, 20])

    assert total_seq_lens(batch) == 30


def test_total_seq_lens_without_a_mirror_counts_what_the_host_has_seen() -> None:
    """Where nobody keeps a mirror, prompts and outputs are counted, behind by steps under way."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 3, 4)
    batch.requests[0].take(9)
    batch.seq_lens_cpu = None

    assert total_seq_lens(batch) == 3 + 4 + 1
