from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from backend_caps.kit import Effort, Verdict, run_case, run_checks
from backend_caps.kit.checks import CHECKS
from benchmarks.attention import REHEARSAL, Row, compared, uses
from tests.kit.honest_backends import HONEST_BACKENDS
from tests.kit.specimen import Specimen
from tests.kit.specimens import LIARS

pytestmark = pytest.mark.slow

CHECK_NAMED = {each.code: each for each in CHECKS}
ONE = Effort(seeds=[0], num_steps=100)
"""One draw of each scenario: `make liars` takes more, before every check."""
_MET = re.compile(r"[a-z-]+#\d+")
_MODELLED = re.compile(rf"modelled on ({_MET.pattern}|[^#:]+)")


@pytest.mark.no_cover  # checks and kit have tests of their own
@pytest.mark.parametrize("own", LIARS, ids=lambda own: own.name)
def test_liar_is_failed_by_its_check(own: Specimen) -> None:
    """The check that is about the lie finds it; `make liars` shows that no other one does."""
    check = CHECK_NAMED[own.check]
    cases = check.cases(own.subject, Effort.quick())

    is_found = any(run_case(own.subject, check, case).findings for case in cases)

    assert check.excuse(own.subject) is None
    assert is_found


@pytest.mark.no_cover  # the same
@pytest.mark.parametrize("own", HONEST_BACKENDS, ids=lambda own: own.name)
def test_honest_backend_passes_the_check_close_to_it(own: Specimen) -> None:
    """What looks like a lie and is none is not taken for one; `make liars` runs all checks."""
    results = run_checks(own.subject, [CHECK_NAMED[own.check]], effort=ONE)

    assert list(results.findings) == []
    assert [each.status for each in results.checks] == [Verdict.HELD]


@pytest.mark.parametrize("own", LIARS, ids=lambda own: own.name)
def test_liar_says_where_it_was_met_in_one_of_two_forms(own: Specimen) -> None:
    """It was met in a thread, or it is modelled on one, or on what kernels and engines do."""
    assert _MET.fullmatch(own.seen) or _MODELLED.fullmatch(own.seen)


def test_names_of_specimens_are_their_own() -> None:
    """Each is found by its name."""
    names = [own.name for own in (*LIARS, *HONEST_BACKENDS)]

    assert len(set(names)) == len(names)


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Rehearse one size."""
    return compared(CPU, replace(REHEARSAL, rounds=1), 1e9, batch_size=2, length=32)


def test_rehearsal_has_every_backend(rows: list[Row]) -> None:
    """Torch's own attention and every installed backend stand side by side."""
    sides = sorted(row.side for row in rows)

    assert sides == sorted(["sdpa, plain order", *(use.backend for use in uses())])


def test_rehearsal_times_what_runs_and_says_why_the_rest_does_not(rows: list[Row]) -> None:
    """Each row has a time and its share of the limit, or a reason."""
    timed = {row.side for row in rows if row.step_us is not None and row.of_limit is not None}

    assert timed >= {"sdpa, plain order", "torch_native", "torch_padded"}
    assert all(row.reason for row in rows if row.side not in timed)


def test_share_of_the_limit_is_of_all_keys_and_values(rows: list[Row]) -> None:
    """At 1 GB/s the limit is a nanosecond for each byte of the contexts' keys and values."""
    row = next(own for own in rows if own.side == "torch_padded")
    layer = REHEARSAL.layer
    num_bytes = 2 * 32 * layer.tp_k_head_num * 2 * layer.qk_head_dim * 2

    assert row.step_us is not None
    assert row.of_limit == pytest.approx(num_bytes / 1e3 / row.step_us)
