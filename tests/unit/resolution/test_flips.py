from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.declaration import Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.vocabulary import BatchKind, Capabilities, GraphMetadata, HostSeqLens
from backend_caps.resolution.flips import Flip, flips
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import Rule, RuleSet
from backend_caps.resolution.uses import uses_of
from tests.unit.building import (
    OPTS_OUT,
    READS,
    RULES_13,
    SPECULATING,
    broken,
    flags,
    installed,
    named,
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


_READING, _BY_BOUND = installed("fa3", READS), installed("fa3", _BOUNDED)
_FREE, _MLA = installed("fa3", OPTS_OUT), installed("mla", OPTS_OUT)
_TRITON, _LEAN = installed("triton", OPTS_OUT), installed("mla", _BOUNDED)
_TARGETS = installed("mla", OPTS_OUT.model_copy(update={"roles": {Role.TARGET}}))
_ON_CUDA = installed("mla", OPTS_OUT.model_copy(update={"devices": {"cuda"}}))
_LACKING = installed("fa3", Capabilities(needs_cpu_seq_lens=False))
_PAIR_OF = {part: installed("pair", parts=[Part(part)]) for part in ("fa3", "mla")}
_WITH_TBO = f"{_ON_FA3} {_TBO}"
_DRAFTS = "--speculative-draft-attention-backend mla"
_DECODES = f"--attention-backend mla --decode-attention-backend fa3 {SPECULATING}"
_PREFILLS = f"--attention-backend fa3 --decode-attention-backend mla {SPECULATING}"
_TWO = f"--prefill-attention-backend fa3 --decode-attention-backend triton {SPECULATING}"
_TWO_SLOTS = "Set --decode-attention-backend mla. Set --prefill-attention-backend mla."
_ALL_BUT_DECODE = (
    f"--attention-backend fa3 --prefill-attention-backend mla {SPECULATING} {_DRAFTS} "
    "--speculative-attention-mode decode --speculative-num-steps 1"
)


@pytest.mark.parametrize(
    ("line", "backends", "told"),
    [
        pytest.param(_WITH_TBO, [_FREE], _LEAVE_OUT_TBO, id="a rule alone"),
        pytest.param(
            "--attention-backend fa3 --speculative-algorithm EAGLE --enable-two-batch-overlap",
            [_FREE],
            f"Add --disable-piecewise-cuda-graph. {_LEAVE_OUT_TBO}",
            id="two rules together",
        ),
        pytest.param(_ON_FA3, [_READING], _DECLARE_BOUND, id="redeclared"),
        pytest.param(_ON_FA3, [_READING, _MLA], _SET_MLA, id="a backend before a declaration"),
        pytest.param(
            _ON_FA3, [_READING, _MLA, _TRITON], f"{_SET_MLA[:-1]}, or triton.", id="equals together"
        ),
        pytest.param(
            _ON_FA3, [_READING, _MLA, _PAIR_OF["mla"]], f"{_SET_MLA[:-1]}, or pair.", id="composite"
        ),
        pytest.param(_ON_FA3, [_READING, _PAIR_OF["fa3"]], _DECLARE_BOUND, id="composite of this"),
        pytest.param(
            _WITH_TBO, [_READING], f"{_LEAVE_OUT_TBO} {_DECLARE_BOUND}", id="rule and declaration"
        ),
        pytest.param(
            _WITH_TBO, [_READING, _MLA], f"{_LEAVE_OUT_TBO} {_SET_MLA}", id="rule and backend"
        ),
        pytest.param(_ON_FA3, [_BY_BOUND], _DECLARE_NONE, id="from a bound to none"),
        pytest.param(_ON_FA3, [_FREE], None, id="nothing is better than NONE"),
        pytest.param(_ON_FA3, [_BY_BOUND, _LEAN], _DECLARE_NONE, id="no better backend"),
        pytest.param(
            _ON_FA3, [_READING, broken("mla", Status.BROKEN)], _DECLARE_BOUND, id="a broken backend"
        ),
        pytest.param(f"{_ON_FA3} --disable-overlap-schedule", [_READING], None, id="no effect"),
        pytest.param(
            _DECODES,
            [_READING, _MLA],
            "Set --decode-attention-backend mla.",
            id="the slot at fault alone",
        ),
        pytest.param(
            _PREFILLS,
            [_READING, _MLA],
            "Set --speculative-attention-mode decode.",
            id="verify runs on the other of a pair",
        ),
        pytest.param(_ALL_BUT_DECODE, [_READING, _MLA], _SET_MLA, id="no rerouting of decode"),
        pytest.param(
            _ON_FA3,
            [installed("fa3")],
            _DECLARE.format("upper_bound and max_context_len_known=yes"),
            id="with what an opt-out requires",
        ),
        pytest.param(
            _ON_FA3,
            [_LACKING],
            "Have 'fa3' declare max_context_len_known=yes, if that is true.",
            id="only what an opt-out requires",
        ),
        pytest.param(
            _TWO, [_READING, installed("triton", READS), _MLA], _TWO_SLOTS, id="both slots"
        ),
        pytest.param(
            SPECULATING, [_FREE], "Set --attention-backend fa3.", id="for the engine's default"
        ),
        pytest.param(SPECULATING, [], None, id="nothing for the engine's default"),
        pytest.param(_ON_FA3, [installed("mla", READS)], None, id="missing, declares nothing"),
        pytest.param(_ON_FA3, [_MLA], _SET_MLA, id="missing, replaced"),
        pytest.param(_ON_FA3, [_READING, _TARGETS], _DECLARE_BOUND, id="not in the role"),
        pytest.param(
            f"{_ON_FA3} --device cpu", [_READING, _ON_CUDA], _DECLARE_BOUND, id="not on the device"
        ),
        pytest.param(
            f"{_WITH_TBO} {_DRAFTS}",
            [_FREE, installed("mla", READS)],
            f"{_LEAVE_OUT_TBO} Set --speculative-draft-attention-backend fa3.",
            id="the draft model's own backend",
        ),
    ],
)
def test_flips_name_all_that_must_change_together(
    line: str, backends: list[Backend], told: str | None
) -> None:
    """A flip is the union of the remedies of everything that stands in the way."""
    found = _flips(line, named(*backends))

    assert _told(found) == ([] if told is None else [told])


def test_flip_says_from_what_to_what() -> None:
    """A flip names its capability, the value now, and the value it leads to."""
    found = _flips(_ON_FA3, named(_READING, _MLA))

    mirror = next(flip for flip in found if flip.capability == "host_seq_lens")
    now, then = HostSeqLens.EXACT, HostSeqLens.NONE
    assert (mirror.phase, mirror.value, mirror.becomes) == (None, now, then)


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
    """Each kind of batch is one step; a backend that serves two of them is told once."""
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
_IF_E5M2, _IF_DP = Given(kv_cache_dtype={"fp8_e5m2"}), Given(enable_dp_attention=True)
_SET_BF16 = "Set --kv-cache-dtype bfloat16."
_NO_DP = "--enable-dp-attention"


@pytest.mark.parametrize(
    ("given", "said", "line", "told"),
    [
        pytest.param(_IF_E5M2, OPTS_OUT, _E5M2, _SET_BF16, id="by the usual dtype"),
        pytest.param(_IF_E5M2, _TAKES_ANY, _E5M2, _SET_BF16, id="by the usual dtype, of any"),
        pytest.param(
            Given(kv_cache_dtype={"fp8_e4m3"}), _TAKES_BOTH, _E4M3, f"Set {_E5M2}.", id="by another"
        ),
        pytest.param(_IF_E5M2, OPTS_OUT, "", _SET_BF16, id="while it is open"),
        pytest.param(
            Given(kv_cache_dtype={"bfloat16"}), OPTS_OUT, "", _DECLARE_BOUND, id="not by itself"
        ),
        pytest.param(_IF_DP, OPTS_OUT, _NO_DP, f"Leave out {_NO_DP}.", id="by a switch"),
        pytest.param(
            Given(kv_cache_dtype={"fp8_e5m2"}, enable_dp_attention=False),
            OPTS_OUT,
            "",
            f"Add {_NO_DP}.",
            id="by a switch before a dtype",
        ),
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
    plan = resolve(
        uses_of(read, backends),
        read,
        facts=Facts(head_size=128),
        rules=RULES_13,
    )

    found = flips(plan, backends, read)

    assert _told(found) == [_LEAVE_OUT_TBO]


def test_flips_leave_conditions_on_other_capabilities() -> None:
    """A declaration that a flip asks for leaves what other conditions say."""
    both = When(
        given=Given(tp_size={1}),
        capabilities=Capabilities(needs_cpu_seq_lens=True, sync_free_prepare=True),
        reason="why",
    )
    backends = named(installed("fa3", OPTS_OUT, conditions=[both]))

    found = _flips(_ON_FA3, backends)

    assert (_told(found), _told(found, "sync_free_prepare")) == ([_DECLARE_BOUND], [])


def _forcing(name: str, given: Given) -> Rule:
    return Rule(name=name, given=given, forces=_READS_ONLY, reason="house rule")


@pytest.mark.parametrize(
    ("givens", "told"),
    [
        pytest.param([Given(tp_size={1})], [], id="no switch undoes it"),
        pytest.param(
            [Given(enable_dp_attention=True, tp_size={1})],
            [f"Leave out {_NO_DP}."],
            id="a switch among others",
        ),
        pytest.param([_IF_DP, _IF_DP], [f"Leave out {_NO_DP}."], id="two by one switch, once"),
        pytest.param([_IF_DP, Given(tp_size={1})], [], id="one of two cannot be undone"),
        pytest.param([_IF_DP, Given(enable_dp_attention=False)], [], id="both ways of one switch"),
    ],
)
def test_flips_undo_rules_by_their_switches(givens: list[Given], told: list[str]) -> None:
    """A rule is undone by a switch it asks for, and only if that really helps."""
    rules = [_forcing(f"rule {place}", given) for place, given in enumerate(givens)]

    found = _flips(f"{_ON_FA3} {_NO_DP}", named(_FREE), rules=RULES_13.with_rules(rules))

    assert _told(found) == told


def test_flips_ask_nothing_of_a_declaration_by_hand() -> None:
    """A backend that no distribution ships has no author to ask."""
    by_hand = replace(installed("fa3", READS), source=BY_HAND)

    found = _flips(_ON_FA3, named(by_hand))

    assert _told(found) == []


def test_flips_do_not_list_what_a_plan_by_hand_has_better_by_its_flags() -> None:
    """Uses by hand come from no flag: there is nothing to change, and no flip without a remedy."""
    backends = named(installed("fa3", OPTS_OUT))
    read = flags(_ON_FA3)
    plan = resolve([use("mine", READS)], read, rules=RULES_13)

    found = flips(plan, backends, read)

    assert _told(found) == []


@pytest.mark.parametrize(
    ("line", "backends"),
    [
        pytest.param(_WITH_TBO, [_READING, _MLA], id="a rule"),
        pytest.param(_PREFILLS, [_READING, _MLA], id="two phases"),
        pytest.param(
            f"{_ON_FA3} {_DRAFTS} --enable-mixed-chunk",
            [installed("fa3"), installed("mla", READS), _TRITON],
            id="three backends",
        ),
    ],
)
def test_flips_by_flags_come_true(line: str, backends: list[Backend]) -> None:
    """Whoever sets the flags of a flip gets the value that it promises."""
    registry = named(*backends)
    by_flags = [
        flip for flip in _flips(line, registry) if all(each.flags for each in flip.remedies)
    ]
    assert by_flags

    got = []
    for flip in by_flags:
        changes = {k: v for each in flip.remedies for k, v in (each.flags or {}).items()}
        read = flags(line).updated(changes)
        plan = resolve(uses_of(read, registry), read, rules=RULES_13)
        got.append(
            (plan[flip.capability, flip.phase] if flip.phase else plan[flip.capability]).value
        )

    assert got == [flip.becomes for flip in by_flags]
