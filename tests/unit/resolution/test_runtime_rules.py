"""The rules of this package's own engine, `backend-caps-1`."""

from __future__ import annotations

import pytest

from backend_caps import Capabilities, HostSeqLens, Phase, Plan, RuleSet, ServerFlags, resolve
from backend_caps.resolution.engine import RUNTIME
from tests.unit.building import use

RULES = RuleSet.builtin(RUNTIME)
EAGLE = ("--speculative-algorithm", "EAGLE")
MIXED = "--enable-mixed-chunk"


def _plan(*arguments: str, prefill: HostSeqLens = HostSeqLens.NONE) -> Plan:
    """Resolve a server whose prefill backend needs this much, and whose others need nothing."""
    free = Capabilities(
        host_seq_lens=HostSeqLens.NONE, max_context_len_known=True, two_batch_overlap=True
    )
    first = free.model_copy(update={"host_seq_lens": prefill})
    uses = [
        use("for_prefill", first, phase=Phase.PREFILL),
        *(use(f"for_{phase.value}", free, phase=phase) for phase in (Phase.DECODE, Phase.VERIFY)),
    ]
    flags = ServerFlags.from_argv(["--attention-backend", "for_decode", *arguments])
    return resolve(uses, flags, rules=RULES, policy="quiet")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(EAGLE, id="pieces"),
        pytest.param((*EAGLE, "--speculative-eagle-topk", "2"), id="trees"),
        pytest.param(("--speculative-algorithm", "STANDALONE"), id="a small model"),
        pytest.param(("--speculative-algorithm", "NGRAM"), id="n-grams"),
        pytest.param((*EAGLE, MIXED), id="mixed chunks"),
        pytest.param((*EAGLE, "--enable-two-batch-overlap"), id="halves"),
        pytest.param((*EAGLE, "--disaggregation-mode", "decode"), id="disaggregation"),
    ],
)
def test_engine_itself_reads_no_lengths(arguments: tuple[str, ...]) -> None:
    """Where no backend asks for lengths, none cross."""
    assert _plan(*arguments).host_seq_lens is HostSeqLens.NONE


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ((*EAGLE, MIXED), HostSeqLens.EXACT),
        (EAGLE, HostSeqLens.NONE),
        ((MIXED,), HostSeqLens.NONE),
        ((*EAGLE, MIXED, "--disable-overlap-schedule"), HostSeqLens.NONE),
        (("--speculative-algorithm", "NGRAM", MIXED), HostSeqLens.NONE),
    ],
    ids=["mixed with drafts", "prompts apart", "no drafts", "no overlap", "drafts of the host"],
)
def test_prefill_backend_counts_where_its_steps_carry_relayed_rows(
    arguments: tuple[str, ...], level: HostSeqLens
) -> None:
    """In a mixed step the prefill backend gets rows whose lengths the relay alone has."""
    assert _plan(*arguments, prefill=HostSeqLens.EXACT).host_seq_lens is level


def test_ngrams_are_not_overlapped() -> None:
    """Drafts that are looked up on the host wait for the result before, and so have the lengths."""
    assert not _plan("--speculative-algorithm", "NGRAM").relays_speculation
