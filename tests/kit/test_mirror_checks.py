from __future__ import annotations

import re
from dataclasses import replace

import pytest
from backend_caps_torch_native import TorchPadded
from torch_native_caps import TORCH_NATIVE

from backend_caps import UNDECLARED, HostSeqLens
from backend_caps.kit import Check, CheckResult, Effort, Subject, Verdict, run_checks
from backend_caps.kit.checks.mirror import MIRROR_ABSENT, MIRROR_READ
from backend_caps.runtime import AttentionBackend, ForwardBatch
from tests.kit.honest_backends import MirrorWhereThere, RoundedBound
from tests.kit.liars.bases import Padded
from tests.kit.specimen import subject_of
from tests.kit.specimens import SUBJECTS

NATIVE = Subject(name="torch_native", declaration=TORCH_NATIVE)
ROUNDED = subject_of(RoundedBound, host_seq_lens=HostSeqLens.UPPER_BOUND)
FIVE = "5 forwards (decode, draft, draft-extend, tree, verify)"


def exact(kind: type[AttentionBackend], **claims: object) -> Subject:
    """Make a subject that asks for the mirror."""
    asked = {"host_seq_lens": HostSeqLens.EXACT, "needs_cpu_seq_lens": True}
    return subject_of(kind, **{**asked, **claims})


def _result(subject: Subject, check: Check) -> CheckResult:
    return run_checks(subject, [check], device="cpu", effort=Effort.quick()).checks[0]


class Sized(Padded):
    """Cuts by the mirror's longest: a bound would do."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Cut there."""
        assert batch.seq_lens_cpu is not None
        longest = int(batch.seq_lens_cpu.max())
        return replace(batch, seq_lens=batch.seq_lens.clamp(max=longest))


def test_readers_of_every_forward_are_reported() -> None:
    """The first findings are one of each role and phase."""
    findings = _result(SUBJECTS["longest_on_host"], MIRROR_ABSENT).findings
    words = [finding.fault.what for finding in findings]

    uses = {each.partition("there, ")[2].partition(" ")[0] for each in words}
    assert uses == {"target/decode", "target/verify", "draft/decode", "draft_extend/verify"}


@pytest.mark.parametrize(
    ("subject", "hint"),
    [
        pytest.param(NATIVE, None, id="needed"),
        pytest.param(ROUNDED, None, id="bound-read"),
        pytest.param(
            exact(TorchPadded),
            f"declared EXACT; never read in 20 cases over {FIVE}; candidate for NONE",
            id="never-read",
        ),
        pytest.param(
            exact(TorchPadded, max_context_len_known=False),
            f"declared EXACT; never read in 20 cases over {FIVE}; candidate for NONE, which "
            f"max_context_len_known=True has to come with",
            id="no-limit-known",
        ),
        pytest.param(
            exact(TorchPadded, host_seq_lens=UNDECLARED, needs_cpu_seq_lens=UNDECLARED),
            f"not declared, so EXACT; never read in 20 cases over {FIVE}; candidate for NONE",
            id="undeclared",
        ),
        pytest.param(
            subject_of(TorchPadded, host_seq_lens=HostSeqLens.UPPER_BOUND),
            f"declared UPPER_BOUND; never read in 20 cases over {FIVE}; candidate for NONE",
            id="bound-never-read",
        ),
        pytest.param(
            exact(MirrorWhereThere),
            f"declared EXACT; reads seq_lens_cpu (honest_backends.py:LINE), and outputs are the "
            f"same without it in 20 cases over {FIVE}; candidate for NONE",
            id="not-needed",
        ),
        pytest.param(
            exact(Sized),
            f"declared EXACT; outputs are the same with a loose bound in its place in 20 cases "
            f"over {FIVE}; candidate for UPPER_BOUND",
            id="bound-would-do",
        ),
    ],
)
def test_hint_says_what_it_rests_on(subject: Subject, hint: str | None) -> None:
    """Who claims more than it needs gets a hint, with what was tried, and fails nothing."""
    result = _result(subject, MIRROR_READ)

    told = [re.sub(r":\d+", ":LINE", own.what) for own in result.hints]
    assert told == ([] if hint is None else [hint])
    assert result.status is Verdict.HELD
