from __future__ import annotations

import pytest

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.vocabulary import Capabilities, GraphMetadata, HostSeqLens
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import Effect, RuleSet
from tests.unit.building import OPTS_OUT, READS, SPECULATING, flags, use

_13, _23 = "sglang-0.5.13", "sglang-0.5.23"
_EAGLE = "--speculative-algorithm EAGLE"
_DETERMINISTIC = "--enable-deterministic-inference"
_BOUNDED = Capabilities(host_seq_lens=HostSeqLens.UPPER_BOUND, max_context_len_known=True)


@pytest.mark.parametrize(
    ("engine", "line", "capabilities", "text"),
    [
        pytest.param(
            _13,
            _EAGLE,
            READS,
            "a D2H copy and a host wait in every overlapped speculative step",
            id="EXACT costs",
        ),
        pytest.param(
            _23, _EAGLE, _BOUNDED, "a bound is kept on the host; no copy, no wait", id="a bound"
        ),
        pytest.param(_23, _EAGLE, OPTS_OUT, "no copy, no wait", id="NONE"),
        pytest.param(
            _13,
            "",
            READS,
            "no effect: without speculative decoding the scheduler knows the lengths",
            id="no speculation",
        ),
        pytest.param(
            _13,
            f"{_EAGLE} --disable-overlap-schedule",
            READS,
            "no effect: without overlap the lengths are known when the next step is prepared",
            id="no overlap",
        ),
        pytest.param(
            _13,
            "--speculative-algorithm NGRAM",
            READS,
            "no effect: sglang-0.5.13 does not overlap the steps of NGRAM",
            id="NGRAM is not overlapped in 0.5.13",
        ),
        pytest.param(
            _23,
            "--speculative-algorithm NGRAM",
            READS,
            "a D2H copy and a host wait in every overlapped speculative step",
            id="NGRAM is overlapped in 0.5.23",
        ),
        pytest.param(
            _13,
            "--speculative-algorithm MY_OWN",
            READS,
            "a D2H copy and a host wait in every overlapped speculative step",
            id="an unknown algorithm counts as overlapped",
        ),
    ],
)
def test_effect_of_the_mirror(
    engine: str, line: str, capabilities: Capabilities, text: str
) -> None:
    """The mirror costs what it costs only where an overlapped speculative step reads it."""
    plan = resolve([use("fa3", capabilities)], flags(line), rules=RuleSet.builtin(engine))

    assert str(plan["host_seq_lens"].effect) == text


@pytest.mark.parametrize(
    ("capability", "line", "text"),
    [
        pytest.param(
            "graph_replay",
            "--disable-cuda-graph",
            "no effect: CUDA graphs are switched off",
            id="no graphs to replay",
        ),
        pytest.param("graph_replay", "", "", id="graphs"),
        pytest.param(
            "graph_metadata",
            "--disable-cuda-graph",
            "no effect: CUDA graphs are switched off",
            id="no graphs to rebuild for",
        ),
        pytest.param("graph_metadata", "", "host code runs before every replay", id="HOST"),
        pytest.param(
            "sync_free_prepare",
            "--disable-overlap-schedule",
            "no effect: without overlap the host waits anyway",
            id="no overlap, no sync to save",
        ),
        pytest.param("sync_free_prepare", "", "", id="overlap"),
        pytest.param(
            "shared_reads_end",
            "--disable-overlap-schedule",
            "no effect: without overlap nothing is overwritten meanwhile",
            id="no overlap, no barrier",
        ),
        pytest.param("shared_reads_end", "", "", id="overlap, a barrier"),
    ],
)
def test_effect_of_a_phase_value(capability: str, line: str, text: str) -> None:
    """A phase's value does something where its machinery is switched on."""
    plan = resolve([use()], flags(line))

    assert str(plan[capability, Phase.DECODE].effect) == text


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
    ("capability", "line", "active"),
    [
        pytest.param("two_batch_overlap", "", False, id="TBO is off"),
        pytest.param("two_batch_overlap", "--enable-two-batch-overlap", True, id="TBO is on"),
        pytest.param("deterministic", "", False, id="any bits will do"),
        pytest.param("deterministic", _DETERMINISTIC, True, id="the same bits each time"),
        pytest.param("batch_invariant", "", False, id="any company will do"),
        pytest.param("batch_invariant", _DETERMINISTIC, True, id="the same bits in company"),
        pytest.param("max_speculative_topk", "", False, id="no draft trees"),
        pytest.param("max_speculative_topk", _EAGLE, True, id="draft trees"),
        pytest.param("page_sizes", "", True, id="pages are always used"),
    ],
)
def test_effect_of_a_server_value(capability: str, line: str, active: bool) -> None:
    """A server's value does something where its machinery is switched on."""
    uses = [use(), use(phase=Phase.VERIFY), use(role=Role.DRAFT)]

    plan = resolve(uses, flags(line))

    assert plan[capability].effect.active is active


def test_effect_of_what_no_use_touches_is_none() -> None:
    """A need that no use touches has its best value and no effect."""
    plan = resolve([use("fa3", READS, phase=Phase.PREFILL)], flags(SPECULATING))

    mirror = plan["host_seq_lens"]
    assert (mirror.value, mirror.effect, mirror.causes) == (
        HostSeqLens.NONE,
        Effect(active=False, text="no use on this server reads it"),
        (),
    )
