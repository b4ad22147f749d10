from __future__ import annotations

from dataclasses import replace

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.stats import EveryObserver, LateObserver, StepTotals
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.made_steps import step

EXTEND, DECODE = ForwardMode.EXTEND, ForwardMode.DECODE
FULL, PIECEWISE, EAGER = GraphMode


def test_every_observer_is_told() -> None:
    """Each observer gets each step."""
    one, other = StepTotals(num_first=1), StepTotals(num_first=1)

    EveryObserver((one, other)).observe(step(num_made=3))

    assert (one.num_made, other.num_made) == (3, 3)


def test_late_observer_is_told_from_its_beginning_on() -> None:
    """Steps of before are nobody's."""
    totals = StepTotals(num_first=9)
    late = LateObserver(totals)

    late.observe(step(num_made=1))
    late.begin()
    late.observe(step(num_made=4))

    assert totals.num_made == 4


def test_totals_keep_the_first_steps() -> None:
    """So many steps are kept as were asked for, and in their order."""
    totals = StepTotals(num_first=2)
    steps = [step(EXTEND), step(DECODE), step(DECODE, num_made=1)]

    for each in steps:
        totals.observe(each)

    assert totals.first == steps[:2]


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

    totals.observe(replace(step(), accept_lens=(1, 4)))
    totals.observe(step(waits_for_lengths=True))

    assert (totals.num_verified, totals.num_accepted, totals.waits_for_lengths) == (2, 5, 1)
