from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from typing import Any, Never

import pytest
from rich.console import Console

from backend_caps.kit import (
    BaselineError,
    Case,
    CheckProgress,
    CheckStep,
    Effort,
    Fault,
    Hint,
    KitError,
    Rig,
    Verdict,
    find_case,
    run_case,
    run_checks,
)
from backend_caps.simulator import Schedule
from tests.kit.made import HONEST, ODD, SCENARIO, odd_check

EVEN = Effort(seeds=(0, 2))
HINT = Hint(claim="host_seq_lens", what="never read")


def _blocked(_rig: Rig, _case: Case) -> Iterator[Fault]:
    raise BaselineError(problem="it raised")


def _raising(_rig: Rig, _case: Case) -> Never:
    raise ValueError("no such row")


def test_check_with_a_fault_fails() -> None:
    """One fault fails the claim, and the finding has the command that shows it again."""
    results = run_checks(HONEST, [ODD], effort=Effort(seeds=(0, 1)))

    assert results.claims == {"host_seq_lens": Verdict.FAILED}
    assert [finding.replay for finding in results.findings] == [
        f"backend-caps check torch_padded --case 'made/{SCENARIO.name}@eager#1'"
    ]


def test_check_stops_where_enough_is_found() -> None:
    """More findings of one check would help nobody."""
    assert len(run_checks(HONEST, [ODD], effort=Effort(seeds=range(1, 99, 2))).findings) == 5


def test_check_without_a_fault_holds() -> None:
    """A claim that nothing was found against holds, with the cases and forwards that ran."""
    results = run_checks(HONEST, [ODD], effort=EVEN)

    assert results.claims == {"host_seq_lens": Verdict.HELD}
    assert [case.seed for case in results.checks[0].cases] == [0, 2]
    assert results.exercised == {"target/decode"}


@pytest.mark.parametrize(
    ("changes", "effort", "reason"),
    [
        pytest.param({"excuse": lambda _: "no claim"}, EVEN, "no claim", id="excused"),
        pytest.param({"unfit": lambda own: f"not on {own}"}, EVEN, "not on cpu", id="unfit"),
        pytest.param(
            {"run": _blocked}, EVEN, "the run to compare with failed: it raised", id="no baseline"
        ),
        pytest.param({}, Effort(seeds=()), "it has no case for what is claimed", id="no case"),
    ],
)
def test_check_that_cannot_answer_is_not_checked(
    changes: dict[str, Any], effort: Effort, reason: str
) -> None:
    """It says why, and so is its claim: nothing is no pass."""
    results = run_checks(HONEST, [replace(ODD, **changes)], device="cpu", effort=effort)

    assert results.claims == {"host_seq_lens": Verdict.NOT_CHECKED}
    assert results.checks[0].reason.startswith(reason)


def test_check_behind_a_failed_one_is_not_checked() -> None:
    """What a check is compared by has to hold first."""
    results = run_checks(HONEST, [ODD, odd_check("later", "made")], effort=Effort(seeds=(1,)))

    assert results.checks[1].status is Verdict.NOT_CHECKED
    assert results.checks[1].reason == "says nothing while made fails"


def test_fault_that_stops_every_batch_is_found_once() -> None:
    """Later checks would find the same, and are not made."""
    stopping = replace(ODD, run=lambda _rig, _case: [Fault(what="no forward", stops=True)])

    first, later = run_checks(HONEST, [stopping, odd_check("later")], effort=EVEN).checks

    assert first.status is Verdict.FAILED
    assert later.reason == "says nothing while made fails"


def test_check_without_runs_to_compare_with_waits_for_numerics() -> None:
    """The error of the run is in what `numerics` finds, and not said again."""
    blocked = replace(ODD, run=_blocked)

    first, later = run_checks(
        HONEST, [odd_check("numerics"), blocked], effort=Effort(seeds=(0, 1))
    ).checks

    assert first.status is Verdict.FAILED
    assert (later.status, later.num_blocked) == (Verdict.NOT_CHECKED, 2)
    assert later.reason == "says nothing while numerics fails"


def test_raised_error_is_a_fault() -> None:
    """Whatever a backend raises is found, in its own words."""
    results = run_checks(HONEST, [replace(ODD, run=_raising)], effort=Effort(seeds=(0,)))

    assert [own.fault.what for own in results.findings] == ["raised ValueError: no such row"]


def test_claim_that_one_check_failed_is_failed() -> None:
    """Of several checks of a claim the worst counts, and one that looked is more than none."""
    codes = [replace(ODD, excuse=lambda _: "no"), odd_check("b"), ODD]
    held = run_checks(HONEST, codes[:2], effort=EVEN)
    failed = run_checks(HONEST, [*codes, codes[1]], effort=Effort(seeds=(1,)))

    assert held.claims == {"host_seq_lens": Verdict.HELD}
    assert failed.claims == {"host_seq_lens": Verdict.FAILED}


@pytest.mark.parametrize(
    ("changes", "seed", "hints"),
    [
        pytest.param({}, 0, [HINT], id="held"),
        pytest.param({}, 1, [], id="failed"),
        pytest.param({"excuse": lambda _: "no"}, 0, [HINT], id="excused"),
        pytest.param({"unfit": lambda _: "no"}, 0, [], id="unfit"),
    ],
)
def test_hints_are_asked_for_where_nothing_was_found(
    changes: dict[str, Any], seed: int, hints: list[Hint]
) -> None:
    """A claim that holds, or is too modest to be checked, may be too modest; others are not."""
    check = replace(ODD, hints=lambda *_: [HINT], **changes)

    results = run_checks(HONEST, [check], effort=Effort(seeds=(seed,)))

    assert list(results.checks[0].hints) == hints


def test_observer_sees_each_case() -> None:
    """Who watches learns how many cases there are, and of each as it ends."""
    steps: list[CheckStep] = []

    run_checks(HONEST, [ODD], effort=Effort(seeds=(0, 1)), observers=[steps.append])

    assert [own.case and own.case.seed for own in steps] == [0, 1, None, None]
    assert [len(own.result.findings) for own in steps] == [0, 0, 1, 1]
    assert [own.num_cases for own in steps] == [2, 2, 2, 0]
    assert [own.is_done for own in steps] == [False, False, False, True]


def test_real_device_runs_its_own_order_alone() -> None:
    """Cases of another order than the device's own are left out."""
    lazy = Case(check="made", scenario=SCENARIO, schedule=Schedule.parse("lazy"))
    both = replace(ODD, cases=lambda _subject, _effort: [Case(check="made"), lazy])

    results = run_checks(HONEST, [both], device="cpu")

    assert list(results.checks[0].cases) == [Case(check="made")]


def test_case_is_found_by_its_name() -> None:
    """Also one of a seed that is not tried by default, and it can run alone."""
    check, case = find_case(HONEST, [ODD], f"made/{SCENARIO.name}@eager#77")

    assert (check, case.seed) == (ODD, 77)
    assert run_case(HONEST, check, case).status is Verdict.FAILED


@pytest.mark.parametrize("name", ["made/-@eager#0", "other/-@eager#0", "made", "made/x#y"])
def test_unknown_case_is_refused(name: str) -> None:
    """A name that no case has is refused, with the form of one."""
    with pytest.raises(KitError, match="CHECK/SCENARIO@SCHEDULE#SEED"):
        find_case(HONEST, [ODD], name)


def _drawn(*, terminal: bool) -> str:
    file = StringIO()
    console = Console(file=file, force_terminal=terminal, width=120, color_system=None)
    with CheckProgress(2, console) as progress:
        checks = [ODD, odd_check("later")]
        run_checks(HONEST, checks, effort=Effort(seeds=range(4)), observers=[progress])
    return file.getvalue()


def test_progress_tells_how_far_it_is() -> None:
    """The last line has the check, its cases and the findings of all; then it is erased."""
    drawn = _drawn(terminal=True)

    (*_, last) = [line for line in drawn.splitlines() if "check" in line]
    found = [words for words in ("check 2/2", "later", "4/4 cases", "4 found") if words in last]
    assert len(found) == 4
    assert drawn.endswith("\x1b[2K")


def test_progress_draws_nothing_where_there_is_no_terminal() -> None:
    """In a file or a pipe there is no trace of it."""
    assert _drawn(terminal=False) == ""


def test_progress_draws_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless a console is given; standard output holds the document alone."""
    with CheckProgress(1) as progress:
        run_checks(HONEST, [ODD], effort=Effort(seeds=(0,)), observers=[progress])

    assert capsys.readouterr().out == ""
