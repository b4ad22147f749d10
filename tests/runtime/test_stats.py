from __future__ import annotations

import pytest
import torch

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.stats import StepTotals, total_seq_lens
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.made_steps import step
from tests.runtime.memories import make_batch, make_memory


@pytest.mark.parametrize(
    ("waits_for_lengths", "num_waits", "host_s"), [(False, 1, 5.0), (True, 2, 4.5)]
)
def test_step_tells_its_waits_and_the_hosts_own_time(
    waits_for_lengths: bool, num_waits: int, host_s: float
) -> None:
    """The host always waits for the tokens, and for lengths where the plan says so.

    Its own time is the launch without the model's 4 s and the half second for lengths, and the 1 s
    behind the tokens. Of 2 s in flight it waited 0.5 s.
    """
    own = step(began_s=100.0, waits_for_lengths=waits_for_lengths)

    assert own.planned_waits == num_waits
    times = [own.host_s, own.wait_s, own.overlap_ratio]
    assert times == pytest.approx([host_s, 0.5, 0.75])


def test_total_seq_lens_sums_the_mirror() -> None:
    """With a mirror, the total is the mirror's."""
    memory = make_memory()
    batch = make_batch(memory, 3, 4)
    batch.seq_lens_cpu = torch.tensor([10, 20])

    assert total_seq_lens(batch) == 30


def test_total_seq_lens_without_a_mirror_counts_what_the_host_has_seen() -> None:
    """Where nobody keeps a mirror, prompts and outputs are counted, behind by steps under way."""
    memory = make_memory()
    batch = make_batch(memory, 3, 4)
    batch.requests[0].take(9)
    batch.seq_lens_cpu = None

    assert total_seq_lens(batch) == 3 + 4 + 1


EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE
FULL, PIECEWISE, EAGER = GraphMode


def test_totals_count_every_step() -> None:
    """Steps that are not kept are counted, each as its kind."""
    totals = StepTotals(num_first=0)

    for mode, ran in ((EXTEND, EAGER), (DECODE, FULL), (DECODE, FULL), (EXTEND, PIECEWISE)):
        totals.observe(step(mode, graph_mode=ran, in_halves=ran is FULL))

    assert totals.num_steps == {EXTEND: 2, DECODE: 2}
    assert (totals.num_eager, totals.num_in_pieces) == ({EXTEND: 1}, {EXTEND: 1})
    assert totals.num_in_halves == {DECODE: 2}


def test_totals_sum_what_steps_told() -> None:
    """Tokens, retractions, waits, bytes and seconds are sums."""
    totals = StepTotals(num_first=0)

    totals.observe(step(num_made=2, num_retracted=1, waits_for_lengths=True))
    totals.observe(step(num_made=3))

    assert (totals.num_made, totals.num_retracted, totals.planned_waits) == (5, 1, 3)
    assert (totals.bytes_to_host, totals.bytes_to_device) == (32, 96)
    assert (totals.host_s, totals.wait_s, totals.in_flight_s) == (9.5, 1.0, 4.0)


def test_overlap_of_a_run_is_weighted_by_time() -> None:
    """The share is that of all the time in flight; without any there is none."""
    totals = StepTotals(num_first=0)

    before = totals.overlap_ratio
    totals.observe(step())

    assert (before, totals.overlap_ratio) == (0.0, 0.75)


def test_totals_count_what_verifies_gave() -> None:
    """Each request of a step that verified counts once; a step of prompts verifies nothing."""
    totals = StepTotals(num_first=0)

    totals.observe(step(accept_lens=(1, 4)))
    totals.observe(step(waits_for_lengths=True))

    assert (totals.num_verified, totals.num_accepted, totals.waits_for_lengths) == (2, 5, 1)
