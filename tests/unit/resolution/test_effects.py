from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps.capability.backend import Reading
from backend_caps.capability.declaration import Part
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import (
    AttentionArch,
    Capabilities,
    GraphMetadata,
    HostSeqLens,
)
from backend_caps.discovery.registry import Registry
from backend_caps.resolution.engine import Engine
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.rules import Effect, RuleSet
from tests.unit.building import (
    OPTS_OUT,
    READS,
    RULES_13,
    RULES_23,
    SPECULATING,
    flags,
    installed,
    named,
    rows,
    use,
)

_BOUNDED = Capabilities(host_seq_lens=HostSeqLens.UPPER_BOUND, max_context_len_known=True)


_COPIES = "a D2H copy and a host wait in every overlapped speculative step"
_WAITS = "without overlap the host waits anyway"
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
    ("line", "capabilities", "text"),
    [
        ("none", READS, "a D2H copy and a host wait in every step in which a builder reads them"),
        (
            "none --disable-overlap-schedule",
            READS,
            "no effect: without overlap the host waits anyway",
        ),
        ("none", _BOUNDED, _PLAIN),
    ],
)
def test_effect_of_lengths_that_builders_copy(
    line: str, capabilities: Capabilities, text: str
) -> None:
    """Where a builder copies them itself, it does so without speculation too."""
    read = flags(f"--speculative-algorithm {line}")
    rules = replace(RULES_23, builders_copy=True)

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


_ENGINE = Engine(
    name="sglang-9.9",
    options={"--page-size": ("--page-size", "--pages"), "--pages": ("--page-size", "--pages")},
    attention_backends=frozenset(),
)
"""One that no stored version is, with an alias that none has."""


def test_flags_follow_an_engine_that_was_read(tmp_path: Path) -> None:
    """A command line, a mapping and a file are read as the engine's own source says."""
    file = tmp_path / "flags.yaml"
    file.write_text("pages: 16\n")

    read = [
        ServerFlags.from_argv(["--pages", "16"], engine_name=_ENGINE),
        ServerFlags.from_mapping({"pages": 16}, engine_name=_ENGINE),
        ServerFlags.from_file(file, engine_name=_ENGINE),
    ]

    assert read == [ServerFlags(page_size=16)] * 3


def test_registry_adds_rules_to_a_set_that_is_given() -> None:
    """Rules of third parties come after those of a rule set that is no built-in one."""
    own = replace(RuleSet.builtin("sglang-0.5.23"), name="sglang-9.9")
    rule = own.rules[0]
    mine = rule.model_copy(update={"engines": {"sglang-9.9"}})
    other = rule.model_copy(update={"engines": {"sglang-0.5.13"}})

    assert Registry.of((), rules=(other, mine)).rules(own).rules == (*own.rules, mine)


_INHERITED = Reading(origin=Origin.INHERITED, words="needs = False")
_SAYS = "inherits needs = False{}, and does not state it again: counts as undeclared"


@pytest.mark.parametrize(
    ("reading", "reason"),
    [
        (_INHERITED, _SAYS.format("")),
        (replace(_INHERITED, inherited_from="Triton"), _SAYS.format(" of Triton")),
        (replace(_INHERITED, origin=Origin.UNDECLARED), "does not declare host_seq_lens"),
    ],
    ids=["from somewhere", "from a class", "not at all"],
)
def test_inherited_opt_out_counts_as_undeclared(reading: Reading, reason: str) -> None:
    """A class that leaves the opt-out to its base needs the lengths, and the cause says so."""
    own = use("A", Capabilities(max_context_len_known=True))
    read = replace(own, readings={"host_seq_lens": reading})

    (cause,) = resolve([read], flags(SPECULATING))["host_seq_lens"].causes

    assert (cause.value, cause.reason) == (HostSeqLens.EXACT, reason)
    assert cause.origin is reading.origin


_EXACT, _NONE = "declares host_seq_lens=exact", "declares host_seq_lens=none"
_WHERE = "(used where attention_arch = {}: not known yet)"


@pytest.mark.parametrize(
    ("facts", "reasons"),
    [
        (Facts(), [f"{_EXACT} {_WHERE.format('mla')}", f"{_NONE} {_WHERE.format('mha')}"]),
        (Facts(attention_arch=AttentionArch.MHA), [_NONE]),
    ],
    ids=["open", "decided"],
)
def test_cause_says_that_its_class_is_not_certain(facts: Facts, reasons: list[str]) -> None:
    """Where a name may stand for either of two classes, both count and say why."""
    mha = Part("a", given=Given(attention_arch={AttentionArch.MHA}))
    mla = Part("b", given=Given(attention_arch={AttentionArch.MLA}))
    backends = named(
        installed("a", OPTS_OUT), installed("b", READS), installed("either", parts=[mha, mla])
    )
    read = flags(f"--attention-backend either {SPECULATING}")

    plan = resolve(uses_of(read, backends), read, facts=facts)

    assert list(dict.fromkeys(c.reason for c in plan["host_seq_lens"].causes)) == reasons
