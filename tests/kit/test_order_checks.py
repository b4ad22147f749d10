from __future__ import annotations

from itertools import pairwise

import pytest

from backend_caps import UNDECLARED, HostSeqLens
from backend_caps.kit import Check, CheckResult, Effort, Subject, find_case, run_case, run_checks
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.checks.overlap import RACES
from backend_caps.kit.checks.preparation import SYNC_FREE_PREPARE
from backend_caps.kit.execution import cases_on
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.honest_backends import PinnedRingThatWaits
from tests.kit.made import HONEST, claiming
from tests.kit.specimen import subject_of
from tests.kit.specimens import SUBJECTS

ONE = Effort(seeds=[1])
_UPLOADS: dict[str, object] = {"host_seq_lens": HostSeqLens.EXACT, "graph_replay": frozenset()}
FOUR = "4 forwards (chunk, decode, draft-extend, tree)"


def _result(subject: Subject, check: Check, effort: Effort = ONE) -> CheckResult:
    return run_checks(subject, [check], effort=effort).checks[0]


def _words(result: CheckResult) -> list[str]:
    return [finding.fault.what for finding in result.findings]


class PollsInPrepare(PinnedRingThatWaits):
    """Waits for its pinned buffer by asking until the copy is done."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Ask, and go on once the answer is yes."""
        while not self._copied.query():
            pass
        return super().seen(batch)


def test_poll_in_prepare_is_a_wait() -> None:
    """A loop that asks an event until it is true waits for the device, by whatever name."""
    polls = subject_of(PollsInPrepare, sync_free_prepare=True, **_UPLOADS)

    words = _words(_result(polls, SYNC_FREE_PREPARE))

    assert any("made the host wait, by Event.query, again and again" in each for each in words)


@pytest.mark.parametrize(
    ("claimed", "words"), [(False, "declared False"), (UNDECLARED, "not declared, so False")]
)
def test_prepare_that_never_waits_is_a_candidate(claimed: object, words: str) -> None:
    """Where the claim is not made and no case waited, it says so, and over what."""
    result = _result(claiming(sync_free_prepare=claimed), SYNC_FREE_PREPARE)

    assert [hint.what for hint in result.hints] == [
        f"{words}; never waited in 4 cases over {FOUR}; candidate for True"
    ]


def test_race_that_torch_cannot_see_is_another_output() -> None:
    """Where the sanitizer sees one side alone, an order of the device shows it."""
    result = _result(SUBJECTS["pinned_ring"], RACES)

    orders = {str(finding.case.schedule) for finding in result.findings}
    assert "eager" not in orders
    assert all("what plain order gives was expected" in what for what in _words(result))


def test_replayed_race_is_found_again() -> None:
    """The case that a finding names finds the same alone."""
    finding = _result(SUBJECTS["plan_beside"], RACES).findings[0]
    check, case = find_case(SUBJECTS["plan_beside"], CHECKS, finding.case.name)

    again = run_case(SUBJECTS["plan_beside"], check, case)

    assert finding.fault in [own.fault for own in again.findings]


def test_seeds_turn_the_forwards() -> None:
    """What a seed leaves out the next one tries."""
    cases = [
        {own.scenario for own in cases_on("sim", SYNC_FREE_PREPARE, HONEST, Effort(seeds=[seed]))}
        for seed in range(4)
    ]

    assert all(not one & other for one, other in pairwise(cases))
    assert len(set.union(*cases)) == 16
