from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from backend_caps.capability.backend import Backend, EngineClass, Status
from backend_caps.capability.declaration import Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import BY_HAND, Source
from backend_caps.capability.vocabulary import BatchKind, Capabilities, GraphMetadata, HostSeqLens
from backend_caps.resolution.flips import Flip, flips
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.routing import uses_of
from backend_caps.resolution.rules import Rule, RuleSet
from tests.unit.building import (
    OPTS_OUT,
    READS,
    RULES_13,
    SPECULATING,
    broken,
    flags,
    installed,
    named,
    rows,
    use,
)

_ON_FA3 = f"--attention-backend fa3 {SPECULATING}"
_TBO = "--enable-two-batch-overlap"
_LEAVE_OUT_TBO = f"Leave out {_TBO}."
_SET_MLA = "Set --attention-backend mla."
_DECLARE = "Have 'fa3' declare host_seq_lens={}, if that is true."
_DECLARE_BOUND, _DECLARE_NONE = _DECLARE.format("upper_bound"), _DECLARE.format("none")
_READS_ONLY = Capabilities(needs_cpu_seq_lens=True)
_BOUNDED = Capabilities(
    host_seq_lens=HostSeqLens.UPPER_BOUND, max_context_len_known=True, roles=set(Role)
)


def _flips(
    line: str,
    backends: Mapping[str, Backend],
    *,
    rules: RuleSet | None = None,
    override: Capabilities | None = None,
) -> tuple[Flip, ...]:
    read = flags(line)
    plan = resolve(uses_of(read, backends), read, rules=rules or RULES_13, unsafe_override=override)
    return flips(plan, backends, read)


def _told(found: tuple[Flip, ...], capability: str = "host_seq_lens") -> list[str]:
    """Write the remedies of each flip one after the other."""
    return [
        " ".join(each.text for each in flip.remedies)
        for flip in found
        if flip.capability == capability
    ]


_FREE, _READING = installed("fa3", OPTS_OUT), installed("fa3", READS)
_MLA, _TRITON = installed("mla", OPTS_OUT), installed("triton", OPTS_OUT)
_BACKENDS = {
    "free": _FREE,
    "reading": _READING,
    "by-bound": installed("fa3", _BOUNDED),
    "lacking": installed("fa3", Capabilities(needs_cpu_seq_lens=False)),
    "silent": installed("fa3"),
    "mla": _MLA,
    "mla-by-bound": installed("mla", _BOUNDED),
    "mla-reading": installed("mla", READS),
    "mla-target": installed("mla", OPTS_OUT.model_copy(update={"roles": {Role.TARGET}})),
    "mla-cuda": installed("mla", OPTS_OUT.model_copy(update={"devices": {"cuda"}})),
    "mla-broken": broken("mla", Status.BROKEN),
    "triton": _TRITON,
    "triton-reading": installed("triton", READS),
    "pair-of-fa3": installed("pair", parts=[Part("fa3")]),
    "pair-of-mla": installed("pair", parts=[Part("mla")]),
}
_WITH_TBO = f"{_ON_FA3} {_TBO}"
_DRAFTS = "--speculative-draft-attention-backend mla"
_DECODES = f"--attention-backend mla --decode-attention-backend fa3 {SPECULATING}"
_PREFILLS = f"--attention-backend fa3 --decode-attention-backend mla {SPECULATING}"
_TWO = f"--prefill-attention-backend fa3 --decode-attention-backend triton {SPECULATING}"
_TWO_SLOTS = "Set --decode-attention-backend mla. Set --prefill-attention-backend mla."
_PIECEWISE = f"--attention-backend fa3 --speculative-algorithm EAGLE {_TBO}"
_ALL_BUT_DECODE = (
    f"--attention-backend fa3 --prefill-attention-backend mla {SPECULATING} {_DRAFTS} "
    "--speculative-attention-mode decode --speculative-num-steps 1"
)
_OF_DRAFT = "Set --speculative-draft-attention-backend fa3."
_BOTH = _DECLARE.format("upper_bound and max_context_len_known=yes")
_KNOWN = "Have 'fa3' declare max_context_len_known=yes, if that is true."


@pytest.mark.parametrize(
    ("line", "names", "told"),
    rows(f"""
a rule alone | {_WITH_TBO} | free | {_LEAVE_OUT_TBO}
two rules together | {_PIECEWISE} | free | Add --disable-piecewise-cuda-graph. {_LEAVE_OUT_TBO}
redeclared | {_ON_FA3} | reading | {_DECLARE_BOUND}
a backend before a declaration | {_ON_FA3} | reading mla | {_SET_MLA}
equals together | {_ON_FA3} | reading mla triton | {_SET_MLA[:-1]}, or triton.
composite | {_ON_FA3} | reading mla pair-of-mla | {_SET_MLA[:-1]}, or pair.
composite of this | {_ON_FA3} | reading pair-of-fa3 | {_DECLARE_BOUND}
rule and declaration | {_WITH_TBO} | reading | {_LEAVE_OUT_TBO} {_DECLARE_BOUND}
rule and backend | {_WITH_TBO} | reading mla | {_LEAVE_OUT_TBO} {_SET_MLA}
from a bound to none | {_ON_FA3} | by-bound | {_DECLARE_NONE}
nothing is better than NONE | {_ON_FA3} | free |
no better backend | {_ON_FA3} | by-bound mla-by-bound | {_DECLARE_NONE}
a broken backend | {_ON_FA3} | reading mla-broken | {_DECLARE_BOUND}
no effect | {_ON_FA3} --disable-overlap-schedule | reading |
the slot at fault alone | {_DECODES} | reading mla | Set --decode-attention-backend mla.
verify by the other of a pair | {_PREFILLS} | reading mla | Set --speculative-attention-mode decode.
no rerouting of decode | {_ALL_BUT_DECODE} | reading mla | {_SET_MLA}
with what an opt-out requires | {_ON_FA3} | silent | {_BOTH}
only what an opt-out requires | {_ON_FA3} | lacking | {_KNOWN}
both slots | {_TWO} | reading triton-reading mla | {_TWO_SLOTS}
for the engine's default | {SPECULATING} | free | Set --attention-backend fa3.
nothing for the engine's default | {SPECULATING} | |
missing, declares nothing | {_ON_FA3} | mla-reading |
missing, replaced | {_ON_FA3} | mla | {_SET_MLA}
not in the role | {_ON_FA3} | reading mla-target | {_DECLARE_BOUND}
not on the device | {_ON_FA3} --device cpu | reading mla-cuda | {_DECLARE_BOUND}
the draft's own | {_WITH_TBO} {_DRAFTS} | free mla-reading | {_LEAVE_OUT_TBO} {_OF_DRAFT}
"""),
)
def test_flips_name_all_that_must_change_together(line: str, names: str, told: str) -> None:
    """A flip is the union of the remedies of everything that stands in the way."""
    found = _flips(line, named(*(_BACKENDS[name] for name in names.split())))

    assert _told(found) == ([told] if told else [])


def test_flip_says_from_what_to_what() -> None:
    """A flip names its capability, the value now, and the value it leads to."""
    found = _flips(_ON_FA3, named(_READING, _MLA))

    mirror = next(flip for flip in found if flip.capability == "host_seq_lens")
    now, then = HostSeqLens.EXACT, HostSeqLens.NONE
    assert (mirror.phase, mirror.value, mirror.becomes) == (None, now, then)


def test_flips_name_no_plugin_that_the_engine_that_was_read_cannot_take() -> None:
    """Beside an engine's own backends, a plugin needs an adapter for it."""
    of_engine = Source(distribution="sglang", version="0.5.13")
    read = replace(
        installed("Reads", READS), source=of_engine, engine_class=EngineClass(path="sglang.Reads")
    )
    fa3 = replace(installed("fa3", parts=[Part("Reads")]), source=of_engine)
    plugins = [
        installed("adapted", OPTS_OUT, adapters={"sglang": "own_caps:make"}),
        installed("plain", OPTS_OUT),
    ]

    told = _told(_flips(_ON_FA3, named(read, fa3, *plugins)))

    assert any("adapted" in each for each in told)
    assert not any("plain" in each for each in told)


def test_flips_of_a_phase_name_it() -> None:
    """A phase's value has its own flips: here the next level, and each further kind of batch."""
    said = Capabilities(
        graph_metadata=GraphMetadata.HOST,
        graph_replay={BatchKind.SINGLE_TOKEN_DECODE, BatchKind.MIXED_BATCH},
    )

    found = _flips("--attention-backend fa3", named(installed("fa3", said)))

    of_decode = [flip for flip in found if flip.phase is Phase.DECODE]
    assert [flip.becomes for flip in of_decode[:2]] == [frozenset(BatchKind), GraphMetadata.DEVICE]
    assert _told(tuple(of_decode), "graph_metadata") == [
        "Have 'fa3' declare graph_metadata=device, if that is true."
    ]


def test_flips_of_a_set_add_one_member_at_a_time() -> None:
    """Each kind of batch is one step; a backend that serves two of them is reported once."""
    graphs = Capabilities(graph_replay={BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH})
    backends = named(installed("fa3"), installed("mla", graphs))

    found = _flips("--prefill-attention-backend fa3 --decode-attention-backend mla", backends)

    of_prefill = tuple(flip for flip in found if flip.phase is Phase.PREFILL)
    assert _told(of_prefill, "graph_replay") == [
        "Have 'fa3' declare graph_replay=mixed_batch, if that is true.",
        "Set --prefill-attention-backend mla.",
    ]


def test_flips_leave_limits_alone() -> None:
    """Of sizes and limits there is no next better value."""
    found = _flips(f"{_ON_FA3} --speculative-eagle-topk 4", named(installed("fa3")))

    assert not {flip.capability for flip in found} & {"page_sizes", "max_speculative_topk"}


def test_flips_of_a_permission_lead_to_it() -> None:
    """What is not permitted is flipped by permitting it."""
    found = _flips(f"--attention-backend fa3 {_TBO}", named(installed("fa3")))

    assert _told(found, "two_batch_overlap") == [
        "Have 'fa3' declare two_batch_overlap=yes, if that is true."
    ]


@pytest.mark.parametrize("said", [OPTS_OUT, READS], ids=["nothing else", "a backend too"])
def test_flips_do_not_argue_with_the_operator(said: Capabilities) -> None:
    """A value that was overridden is not flipped, whatever else stands in its way."""
    backends = named(installed("fa3", said), installed("mla", OPTS_OUT))

    found = _flips(_ON_FA3, backends, override=Capabilities(needs_cpu_seq_lens=True))

    assert _told(found) == []


def test_flips_do_not_argue_with_the_engine() -> None:
    """A need that the engine itself has is not flipped."""
    backends = named(installed("fa3", READS), installed("mla", OPTS_OUT))
    read = flags(_ON_FA3)
    plan = resolve(uses_of(read, backends), read, rules=RULES_13)

    found = flips(plan.raised("host_seq_lens", HostSeqLens.EXACT, "no bound"), backends, read)

    assert _told(found) == []


_TAKES_BOTH = OPTS_OUT.model_copy(update={"kv_cache_dtypes": {"fp8_e5m2", "fp8_e4m3"}})
_TAKES_ANY = OPTS_OUT.model_copy(update={"kv_cache_dtypes": "any"})


_E5M2, _E4M3 = "--kv-cache-dtype fp8_e5m2", "--kv-cache-dtype fp8_e4m3"
_IF_E5M2, _IF_E4M3, _IF_BF16 = (
    Given(kv_cache_dtype={name}) for name in ("fp8_e5m2", "fp8_e4m3", "bfloat16")
)
_IF_DP = Given(enable_dp_attention=True)
_IF_BOTH = Given(kv_cache_dtype={"fp8_e5m2"}, enable_dp_attention=False)
_SET_BF16 = "Set --kv-cache-dtype bfloat16."
_NO_DP = "--enable-dp-attention"


@pytest.mark.parametrize(
    ("given", "said", "line", "told"),
    [
        pytest.param(_IF_E5M2, OPTS_OUT, _E5M2, _SET_BF16, id="by the usual dtype"),
        pytest.param(_IF_E5M2, _TAKES_ANY, _E5M2, _SET_BF16, id="by the usual dtype, of any"),
        pytest.param(_IF_E4M3, _TAKES_BOTH, _E4M3, f"Set {_E5M2}.", id="by another"),
        pytest.param(_IF_E5M2, OPTS_OUT, "", _SET_BF16, id="while it is open"),
        pytest.param(_IF_BF16, OPTS_OUT, "", _DECLARE_BOUND, id="not by itself"),
        pytest.param(_IF_DP, OPTS_OUT, _NO_DP, f"Leave out {_NO_DP}.", id="by a switch"),
        pytest.param(_IF_BOTH, OPTS_OUT, "", f"Add {_NO_DP}.", id="by a switch before a dtype"),
        pytest.param(_IF_DP, OPTS_OUT, "", None, id="not where it does not hold"),
        pytest.param(Given(tp_size={1}), OPTS_OUT, "", _DECLARE_BOUND, id="by no number"),
    ],
)
def test_flips_avoid_a_condition(
    given: Given, said: Capabilities, line: str, told: str | None
) -> None:
    """A condition that stands in the way is made false by a flag, else declared anew."""
    reads = When(given=given, capabilities=_READS_ONLY, reason="why")

    found = _flips(f"{_ON_FA3} {line}", named(installed("fa3", said, conditions=[reads])))

    assert _told(found) == ([] if told is None else [told])


def test_flips_avoid_no_condition_that_does_not_hold() -> None:
    """A condition that is false already needs no change."""
    holds, fails = (
        When(given=given, capabilities=_READS_ONLY, reason="why")
        for given in (Given(disable_cuda_graph=False), Given(enable_dp_attention=True))
    )

    found = _flips(_ON_FA3, named(installed("fa3", OPTS_OUT, conditions=[fails, holds])))

    assert _told(found) == ["Add --disable-cuda-graph."]


def test_flips_know_the_facts_of_the_plan() -> None:
    """What is known of the machine is known when resolving once more."""
    small = When(given=Given(head_size={64}), capabilities=_READS_ONLY, reason="why")
    backends = named(installed("fa3", OPTS_OUT, conditions=[small]))
    read = flags(f"{_ON_FA3} {_TBO}")
    uses, facts = uses_of(read, backends), Facts(head_size=128)

    found = flips(resolve(uses, read, facts=facts, rules=RULES_13), backends, read)

    assert _told(found) == [_LEAVE_OUT_TBO]


def test_flips_leave_conditions_on_other_capabilities() -> None:
    """A declaration that a flip asks for leaves what other conditions say."""
    both = When(
        given=Given(tp_size={1}),
        capabilities=Capabilities(needs_cpu_seq_lens=True, sync_free_prepare=True),
        reason="why",
    )

    found = _flips(_ON_FA3, named(installed("fa3", OPTS_OUT, conditions=[both])))

    assert (_told(found), _told(found, "sync_free_prepare")) == ([_DECLARE_BOUND], [])


_DP_AND_TP = Given(enable_dp_attention=True, tp_size={1})


@pytest.mark.parametrize(
    ("givens", "told"),
    [
        pytest.param([Given(tp_size={1})], [], id="no switch undoes it"),
        pytest.param([_DP_AND_TP], [f"Leave out {_NO_DP}."], id="a switch among others"),
        pytest.param([_IF_DP, _IF_DP], [f"Leave out {_NO_DP}."], id="two by one switch, once"),
        pytest.param([_IF_DP, Given(tp_size={1})], [], id="one of two cannot be undone"),
        pytest.param([_IF_DP, Given(enable_dp_attention=False)], [], id="both ways of one switch"),
    ],
)
def test_flips_undo_rules_by_their_switches(givens: list[Given], told: list[str]) -> None:
    """A rule is undone by a switch it asks for, and only if that really helps."""
    rules = [
        Rule(name=f"rule {place}", given=given, forces=_READS_ONLY, reason="house rule")
        for place, given in enumerate(givens)
    ]

    found = _flips(f"{_ON_FA3} {_NO_DP}", named(_FREE), rules=RULES_13.with_rules(rules))

    assert _told(found) == told


def test_flips_ask_nothing_of_a_declaration_by_hand() -> None:
    """A backend that no distribution ships has no author to ask."""
    found = _flips(_ON_FA3, named(replace(installed("fa3", READS), source=BY_HAND)))

    assert _told(found) == []


def test_flips_do_not_list_what_a_plan_by_hand_has_better_by_its_flags() -> None:
    """Uses by hand come from no flag: there is nothing to change, and no flip without a remedy."""
    backends = named(installed("fa3", OPTS_OUT))
    read = flags(_ON_FA3)
    plan = resolve([use("mine", READS)], read, rules=RULES_13)

    assert _told(flips(plan, backends, read)) == []


_THREE = f"{_ON_FA3} {_DRAFTS} {_TBO}"


@pytest.mark.parametrize(
    ("line", "backends"),
    [
        pytest.param(_WITH_TBO, [_READING, _MLA], id="a rule"),
        pytest.param(_PREFILLS, [_READING, _MLA], id="two phases"),
        pytest.param(_THREE, [_BACKENDS["silent"], _BACKENDS["mla-reading"], _TRITON], id="three"),
    ],
)
def test_flips_by_flags_come_true(line: str, backends: list[Backend]) -> None:
    """Whoever sets the flags of a flip gets the value that it promises."""
    registry = named(*backends)
    found = _flips(line, registry)
    by_flags = [flip for flip in found if all(each.flags for each in flip.remedies)]
    assert by_flags

    got = []
    for flip in by_flags:
        changes = {k: v for each in flip.remedies for k, v in (each.flags or {}).items()}
        read = flags(line).updated(changes)
        plan = resolve(uses_of(read, registry), read, rules=RULES_13)
        key = (flip.capability, flip.phase) if flip.phase else flip.capability
        got.append(plan[key].value)

    assert got == [flip.becomes for flip in by_flags]
