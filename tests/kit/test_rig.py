from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Thread

import pytest
import torch
from torch import Tensor, stack

from backend_caps.kit import Case, Effort, Fault, Hint, Rig, Verdict, run_checks, single_threaded
from backend_caps.kit.rig import OverdueError, ends_within
from backend_caps.kit.scenes import (
    DECODE,
    GROVE,
    PREFIXED,
    VERIFY,
    Scene,
    Setting,
    layer_of,
    padded,
    reference_attention,
    scene,
    tree_scene,
)
from tests.kit.made import HONEST, ODD, odd_check

SHORT_S, LONG_S = 0.2, 60.0


def _loops() -> None:
    while True:
        with suppress(Exception):
            int("no number")


def _swallows_once() -> None:
    try:
        time.sleep(LONG_S)
    except:  # noqa: E722 - as code of a backend may
        time.sleep(LONG_S)


@pytest.mark.parametrize(
    "endless",
    [
        pytest.param(_loops, id="loop that catches exceptions"),
        pytest.param(lambda: time.sleep(LONG_S), id="sleep"),
        pytest.param(_swallows_once, id="bare except"),
    ],
)
def test_deadline_interrupts_what_python_runs(endless: Callable[[], None]) -> None:
    """Whether it loops or waits, the block ends soon after its time."""
    started = time.monotonic()

    with pytest.raises(OverdueError), ends_within(SHORT_S):
        endless()

    assert time.monotonic() - started < LONG_S / 2


def test_deadline_leaves_another_timer_as_it_was() -> None:
    """A timer of a test runner goes on, and its handler is in its place again."""
    before = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, LONG_S)
    try:
        with ends_within(SHORT_S):
            pass
        after = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before[0])

    assert (LONG_S / 2 < after[0][0] <= LONG_S, after[1]) == (True, before[1])


def test_deadline_beyond_another_timer_is_none_of_its_own() -> None:
    """Where a test's own time ends before, that ends it."""
    before = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, LONG_S)
    handler = signal.getsignal(signal.SIGALRM)
    try:
        with ends_within(2 * LONG_S):
            within = signal.getsignal(signal.SIGALRM)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)

    assert within is handler


def test_deadline_in_another_thread_is_none() -> None:
    """Python gives signals to the main thread alone: elsewhere a block just runs."""
    ran: list[bool] = []

    def run() -> None:
        with ends_within(SHORT_S):
            time.sleep(2 * SHORT_S)
            ran.append(True)

    thread = Thread(target=run)
    thread.start()
    thread.join()

    assert ran == [True]


def _endless(rig: Rig, case: Case) -> Iterator[Fault]:
    yield from ODD.run(rig, case)
    if case.seed >= 2:
        _loops()


def test_case_that_does_not_end_is_a_finding() -> None:
    """It has what it found before, the other cases run, and the next check too."""
    checks = [replace(ODD, run=_endless), odd_check("later")]

    results = run_checks(HONEST, checks, effort=Effort(seeds=(2, 1)), deadline_s=SHORT_S)

    found = [own.fault.what for own in results.checks[0].findings]
    assert found == ["did not end within 0.2 s", "seed 1 is odd"]
    assert [own.status for own in results.checks] == [Verdict.FAILED] * 2


def test_case_of_many_steps_has_longer() -> None:
    """A case that looks for growth over twice as many steps may take twice as long."""
    case = Case(check="made", seed=2, num_steps=200)
    check = replace(ODD, run=_endless, cases=lambda _subject, _effort: [case])

    results = run_checks(HONEST, [check], deadline_s=SHORT_S)

    assert [own.fault.what for own in results.findings] == ["did not end within 0.4 s"]


def test_check_ends_after_two_cases_that_do_not() -> None:
    """Each takes its whole deadline, and a third one would say no more."""
    checks = [replace(ODD, run=_endless)]

    results = run_checks(HONEST, checks, effort=Effort(seeds=(2, 3, 4, 5)), deadline_s=SHORT_S)

    assert [case.seed for case in results.checks[0].cases] == [2, 3]


def _endless_hints(_subject: object, _cases: object, _rig: object) -> Iterator[Hint]:
    _loops()
    yield Hint(claim="", what="")


def test_hints_that_do_not_end_are_none() -> None:
    """What may be claimed beyond what is costs no run its end."""
    checks = [replace(ODD, hints=_endless_hints)]

    results = run_checks(HONEST, checks, effort=Effort(seeds=(2,)), deadline_s=SHORT_S)

    assert (results.checks[0].status, results.checks[0].hints) == (Verdict.HELD, ())


def test_one_thread_computes_within_the_block() -> None:
    """Behind it as many compute as before."""
    before = torch.get_num_threads()

    torch.set_num_threads(2)
    with single_threaded():
        within = torch.get_num_threads()
    behind = torch.get_num_threads()

    torch.set_num_threads(before)
    assert (within, behind) == (1, 2)


SCENES = [
    pytest.param(scene(PREFIXED), id="prefill"),
    pytest.param(scene(DECODE, uniform=True), id="decode"),
    pytest.param(scene(VERIFY, setting=Setting(layer=layer_of(6, 2, 8, 12))), id="verify"),
    pytest.param(tree_scene(GROVE), id="trees"),
]
every_scene = pytest.mark.parametrize("own", SCENES)


@every_scene
def test_reference_is_the_definition_written_out(own: Scene) -> None:
    """The reference gives what one query and one head at a time give, by exponents and sums."""
    queries = iter(own.q.double())
    by_hand = [
        _one_token(next(queries), keys[seen], values[seen], own.layer.scaling)
        for (keys, values), visible in zip(own.contexts, own.visible, strict=True)
        for seen in visible
    ]

    torch.testing.assert_close(reference_attention(own), stack(by_hand))


@every_scene
def test_pools_hold_the_contexts_and_poison(own: Scene) -> None:
    """What the page table names is the context without the new tokens; the rest is no number."""
    pools, batch = own.pools, own.batch
    slots = [
        pools.req_to_token[row, :length].long()
        for row, length in zip(batch.req_pool_indices, batch.seq_lens, strict=True)
    ]

    for (keys, _), held, count in zip(own.contexts, slots, own.counts, strict=True):
        assert torch.equal(pools.keys[held[: len(held) - count]], keys[: len(held) - count])
    assert torch.equal(
        torch.cat([held[-n:] for held, n in zip(slots, own.counts, strict=True)]),
        batch.out_cache_loc,
    )
    num_cached = int(batch.seq_lens.sum()) - sum(own.counts)
    assert int((~pools.keys.isnan().all((1, 2))).sum()) == num_cached


def test_tokens_that_see_nothing_get_zeros() -> None:
    """A row of a mask that hides all has no softmax; its output is zero."""
    own = tree_scene(GROVE)
    own.visible[0][1] = False

    output = reference_attention(own)

    assert torch.equal(output[1], torch.zeros_like(output[1]))


def test_padding_is_as_a_graph_runner_pads() -> None:
    """Requests of pool row 0 and length 1 follow, with tokens that are no numbers."""
    own = padded(scene(PREFIXED), rows=2, tokens=3)

    assert own.batch.req_pool_indices[-2:].tolist() == [0, 0]
    assert own.batch.seq_lens[-2:].tolist() == [1, 1]
    assert own.batch.out_cache_loc[-3:].tolist() == [0, 0, 0]
    assert bool(own.q[-3:].isnan().all())


def _one_token(query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
    group = len(query) // keys.shape[1]
    heads = []
    for head, q in enumerate(query):
        k, v = keys[:, head // group].double(), values[:, head // group].double()
        weights = (k @ q * scaling).exp()
        heads.append((weights[:, None] * v).sum(0) / weights.sum())
    return stack(heads)
