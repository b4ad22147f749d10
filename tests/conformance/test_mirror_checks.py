from __future__ import annotations

from dataclasses import replace

import pytest
from backend_caps_torch_native import TorchNative
from torch_native_caps import TORCH_NATIVE

from backend_caps import UNDECLARED, HostSeqLens, Role
from backend_caps.conformance.checks import mirror_absent, mirror_bound, mirror_read
from backend_caps.conformance.kit import Check, CheckResult, Effort, Subject, Verdict, run_checks
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.conformance.honest.mirror import MirrorWhereThere
from tests.conformance.kit.made import HONEST, claiming
from tests.conformance.liars.liar import subject_of
from tests.conformance.liars.mirror import LIARS
from tests.conformance.liars.padded import Padded

OF_NAME = {own.name: own.subject for own in LIARS}
NATIVE = Subject(name="torch_native", declaration=TORCH_NATIVE)
DECODE_ALONE: dict[str, object] = {
    "max_speculative_topk": 1,
    "roles": frozenset({Role.TARGET}),
}


def _result(subject: Subject, check: Check, *, device: str = "cpu") -> CheckResult:
    return run_checks(subject, [check], device=device, effort=Effort.quick()).checks[0]


def _words(result: CheckResult) -> list[str]:
    return [finding.fault.what for finding in result.findings]


class Sized(Padded):
    """Cuts by the mirror's longest: a bound would do."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut there."""
        assert batch.seq_lens_cpu is not None
        longest = int(batch.seq_lens_cpu.max())
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=longest))


@pytest.mark.parametrize(
    ("subject", "check", "reason"),
    [
        (NATIVE, mirror_absent.CHECK, "it claims EXACT: the mirror is there"),
        (NATIVE, mirror_bound.CHECK, "it does not claim UPPER_BOUND: no bound is read"),
        (HONEST, mirror_bound.CHECK, "it does not claim UPPER_BOUND: no bound is read"),
        (HONEST, mirror_read.CHECK, "it claims NONE: nothing is asked for"),
    ],
)
def test_check_that_does_not_apply_says_why(subject: Subject, check: Check, reason: str) -> None:
    """Each level of the scale has checks of its own."""
    assert check.excuse(subject) == reason


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_who_needs_no_mirror_holds(device: str) -> None:
    """A backend of device lengths gives the same without."""
    result = _result(HONEST, mirror_absent.CHECK, device=device)

    assert (result.status, len(result.cases)) == (Verdict.HELD, 20)


def test_absent_mirror_is_told_with_its_readers() -> None:
    """A fault says what happened, whose forward it was, and which lines read what."""
    words = _words(_result(OF_NAME["sum_in_draft_extend"], mirror_absent.CHECK))

    told = words[0].replace(".py:42", "").replace(".py:43", "")
    assert told == (
        "without the mirror it raised AssertionError; where it is there, draft_extend/verify "
        "reads seq_lens_sum (mirror, mirror)"
    )


def test_readers_of_every_forward_are_told() -> None:
    """The first findings are one of each role and phase."""
    words = _words(_result(OF_NAME["longest_on_host"], mirror_absent.CHECK))

    uses = {each.partition("there, ")[2].partition(" ")[0] for each in words}
    assert uses == {"target/decode", "target/verify", "draft/decode", "draft_extend/verify"}


def test_site_of_a_wrong_output_is_the_first_read() -> None:
    """Nothing was raised, so what read the mirror is where to look."""
    finding = _result(OF_NAME["sum_or_nothing"], mirror_absent.CHECK).findings[0]

    assert finding.fault.site is not None
    assert finding.fault.site.file.endswith("liars/mirror.py")


def test_prompts_are_named_where_they_matter() -> None:
    """A length kept of them is found behind them alone."""
    words = _words(_result(OF_NAME["mirror_of_prompts"], mirror_absent.CHECK))

    assert all("without the mirror, behind prompts that had it, tokens" in own for own in words)


def test_reader_of_nothing_is_told_of_no_line() -> None:
    """A backend that raises without a read has no lines to list."""
    subject = OF_NAME["mirror_at_page_edge"]

    result = _result(subject, mirror_absent.CHECK)

    assert result.status is Verdict.FAILED


def test_loose_bound_is_told_with_its_lengths() -> None:
    """A fault says which bounds were given of which lengths."""
    words = _words(_result(OF_NAME["bound_is_length"], mirror_bound.CHECK))

    assert words[0] == (
        "with bounds [24] of lengths [3] NaN or infinity in the outputs of tokens 0"
    )


def test_needed_mirror_is_no_hint() -> None:
    """A backend that slices by the mirror claims what it needs."""
    assert _result(NATIVE, mirror_read.CHECK).hints == ()
