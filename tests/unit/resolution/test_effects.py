from __future__ import annotations

import pytest

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.vocabulary import Capabilities, GraphMetadata, HostSeqLens
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import Effect, RuleSet
from tests.unit.building import OPTS_OUT, READS, RULES_13, RULES_23, SPECULATING, flags, rows, use

_BOUNDED = Capabilities(host_seq_lens=HostSeqLens.UPPER_BOUND, max_context_len_known=True)


_COPIES = "a D2H copy and a host wait in every overlapped speculative step"
_PLAIN = "no effect: without speculative decoding the scheduler knows the lengths"
_KNOWN = "no effect: without overlap the lengths are known when the next step is prepared"


@pytest.mark.parametrize(
    ("rules", "line", "capabilities", "text"),
    [
        (RULES_13, "EAGLE", READS, _COPIES),
        (RULES_23, "EAGLE", _BOUNDED, "a bound is kept on the host; no copy, no wait"),
        (RULES_23, "EAGLE", OPTS_OUT, "no copy, no wait"),
        (RULES_13, "none", READS, _PLAIN),
        (RULES_13, "EAGLE --disable-overlap-schedule", READS, _KNOWN),
        (RULES_13, "NGRAM", READS, "no effect: sglang-0.5.13 does not overlap the steps of NGRAM"),
        (RULES_23, "NGRAM", READS, _COPIES),
        (RULES_13, "MY_OWN", READS, _COPIES),  # nobody knows it, so it counts as overlapped
    ],
)
def test_effect_of_the_mirror(
    rules: RuleSet, line: str, capabilities: Capabilities, text: str
) -> None:
    """The mirror costs what it costs only where an overlapped speculative step reads it."""
    read = flags(f"--speculative-algorithm {line}")

    plan = resolve([use("fa3", capabilities)], read, rules=rules)

    assert str(plan["host_seq_lens"].effect) == text


@pytest.mark.parametrize(
    ("capability", "line", "text"),
    rows("""
no replay | graph_replay | --disable-cuda-graph | no effect: CUDA graphs are switched off
graphs | graph_replay | |
no rebuilding | graph_metadata | --disable-cuda-graph | no effect: CUDA graphs are switched off
HOST | graph_metadata | | host code runs before every replay
no overlap | sync_free_prepare | --disable-overlap-schedule | no effect: {wait}
overlap | sync_free_prepare | |
no barrier | shared_reads_end | --disable-overlap-schedule | no effect: {overwritten}
a barrier | shared_reads_end | |
"""),
)
def test_effect_of_a_phase_value(capability: str, line: str, text: str) -> None:
    """A phase's value does something where its machinery is switched on."""
    plan = resolve([use()], flags(line))

    assert str(plan[capability, Phase.DECODE].effect) == text.format(
        wait="without overlap the host waits anyway",
        overwritten="without overlap nothing is overwritten meanwhile",
    )


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (GraphMetadata.HOST, "host code runs before every replay"),
        (GraphMetadata.DEVICE, "device work runs before every replay"),
        (GraphMetadata.IN_GRAPH, "nothing runs before a replay"),
    ],
)
def test_effect_of_graph_metadata(level: GraphMetadata, text: str) -> None:
    """Each level says what runs before a replay."""
    plan = resolve([use("fa3", Capabilities(graph_metadata=level))], flags())

    assert plan["graph_metadata", Phase.DECODE].effect == Effect(active=True, text=text)


@pytest.mark.parametrize(
    ("capability", "line"),
    [
        ("two_batch_overlap", "--enable-two-batch-overlap"),
        ("deterministic", "--enable-deterministic-inference"),
        ("batch_invariant", "--enable-deterministic-inference"),
        ("max_speculative_topk", "--speculative-algorithm EAGLE"),
        ("page_sizes", ""),  # pages are always used
    ],
)
def test_effect_of_a_server_value(capability: str, line: str) -> None:
    """A server's value does something where its machinery is switched on."""
    uses = [use(), use(phase=Phase.VERIFY), use(role=Role.DRAFT)]

    without, with_it = (resolve(uses, flags(said))[capability].effect for said in ("", line))

    assert (without.active, with_it.active) == (not line, True)


def test_effect_of_what_no_use_touches_is_none() -> None:
    """A need that no use touches has its best value and no effect."""
    plan = resolve([use("fa3", READS, phase=Phase.PREFILL)], flags(SPECULATING))

    mirror = plan["host_seq_lens"]
    assert (mirror.value, mirror.effect, mirror.causes) == (
        HostSeqLens.NONE,
        Effect(active=False, text="no use on this server reads it"),
        (),
    )
