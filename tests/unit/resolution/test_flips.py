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
_RULES = RuleSet.builtin("sglang-0.5.13")


def _flips(
    line: str,
    backends: Mapping[str, Backend],
    *,
    rules: RuleSet | None = None,
    override: Capabilities | None = None,
) -> tuple[Flip, ...]:
    read = flags(line)
    plan = resolve(uses_of(read, backends), read, rules=rules or _RULES, unsafe_override=override)
    return flips(plan, backends, read)


def _told(found: tuple[Flip, ...], capability: str = "host_seq_lens") -> list[tuple[str, ...]]:
    return [
        tuple(each.text for each in flip.remedies)
        for flip in found
        if flip.capability == capability
    ]


@pytest.mark.parametrize(
    ("line", "backends", "told"),
    [
        pytest.param(
            f"{_ON_FA3} {_TBO}",
            [installed("fa3", OPTS_OUT)],
            [(_LEAVE_OUT_TBO,)],
            id="a rule alone",
        ),
        pytest.param(
            "--attention-backend fa3 --speculative-algorithm EAGLE --enable-two-batch-overlap",
            [installed("fa3", OPTS_OUT)],
            [("Add --disable-piecewise-cuda-graph.", _LEAVE_OUT_TBO)],
            id="two rules together",
        ),
        pytest.param(_ON_FA3, [installed("fa3", READS)], [(_DECLARE_BOUND,)], id="redeclared"),
        pytest.param(
            _ON_FA3,
            [installed("fa3", READS), installed("mla", OPTS_OUT)],
            [(_SET_MLA,)],
            id="a replaced backend goes before a declaration",
        ),
        pytest.param(
            _ON_FA3,
            [installed("fa3", READS), installed("mla", OPTS_OUT), installed("triton", OPTS_OUT)],
            [("Set --attention-backend mla, or triton.",)],
            id="backends that would do as well are named together",
        ),
        pytest.param(
            _ON_FA3,
            [
                installed("fa3", READS),
                installed("mla", OPTS_OUT),
                installed("pair", parts=[Part("mla")]),
            ],
            [("Set --attention-backend mla, or pair.",)],
            id="a composite whose parts would do is named",
        ),
        pytest.param(
            _ON_FA3,
            [installed("fa3", READS), installed("pair", parts=[Part("fa3")])],
            [(_DECLARE_BOUND,)],
            id="a composite whose parts would not do is not named",
        ),
        pytest.param(
            f"{_ON_FA3} {_TBO}",
            [installed("fa3", READS)],
            [(_LEAVE_OUT_TBO, _DECLARE_BOUND)],
            id="a rule and a declaration together",
        ),
        pytest.param(
            f"{_ON_FA3} {_TBO}",
            [installed("fa3", READS), installed("mla", OPTS_OUT)],
            [(_LEAVE_OUT_TBO, _SET_MLA)],
            id="a rule and a replaced backend together",
        ),
        pytest.param(
            _ON_FA3, [installed("fa3", _BOUNDED)], [(_DECLARE_NONE,)], id="from a bound to none"
        ),
        pytest.param(_ON_FA3, [installed("fa3", OPTS_OUT)], [], id="nothing is better than NONE"),
        pytest.param(
            _ON_FA3,
            [installed("fa3", _BOUNDED), installed("mla", _BOUNDED)],
            [(_DECLARE_NONE,)],
            id="a backend no better than this one is not named",
        ),
        pytest.param(
            _ON_FA3,
            [installed("fa3", READS), broken("mla", Status.BROKEN)],
            [(_DECLARE_BOUND,)],
            id="a broken backend is not named",
        ),
        pytest.param(
            f"{_ON_FA3} --disable-overlap-schedule",
            [installed("fa3", READS)],
            [],
            id="a value without effect is left",
        ),
        pytest.param(
            f"--attention-backend mla --decode-attention-backend fa3 {SPECULATING}",
            [installed("fa3", READS), installed("mla", OPTS_OUT)],
            [("Set --decode-attention-backend mla.",)],
            id="only the slot at fault is replaced",
        ),
        pytest.param(
            f"--attention-backend fa3 --decode-attention-backend mla {SPECULATING}",
            [installed("fa3", READS), installed("mla", OPTS_OUT)],
            [("Set --speculative-attention-mode decode.",)],
            id="verify runs on the other of a pair",
        ),
        pytest.param(
            f"--attention-backend fa3 --prefill-attention-backend mla {SPECULATING} "
            "--speculative-attention-mode decode --speculative-num-steps 1 "
            "--speculative-draft-attention-backend mla",
            [installed("fa3", READS), installed("mla", OPTS_OUT)],
            [(_SET_MLA,)],
            id="no rerouting where decode is at fault",
        ),
        pytest.param(
            _ON_FA3,
            [installed("fa3")],
            [
                (
                    (
                        "Have 'fa3' declare host_seq_lens=upper_bound and "
                        "max_context_len_known=yes, if that is true."
                    ),
                )
            ],
            id="redeclared with what an opt-out requires",
        ),
        pytest.param(
            _ON_FA3,
            [installed("fa3", Capabilities(needs_cpu_seq_lens=False))],
            [("Have 'fa3' declare max_context_len_known=yes, if that is true.",)],
            id="declared but for what an opt-out requires",
        ),
        pytest.param(
            f"--prefill-attention-backend fa3 --decode-attention-backend triton {SPECULATING}",
            [installed("fa3", READS), installed("triton", READS), installed("mla", OPTS_OUT)],
            [("Set --decode-attention-backend mla.", "Set --prefill-attention-backend mla.")],
            id="both slots are replaced together",
        ),
        pytest.param(
            SPECULATING,
            [installed("fa3", OPTS_OUT)],
            [("Set --attention-backend fa3.",)],
            id="the engine's default is replaced",
        ),
        pytest.param(SPECULATING, [], [], id="nothing replaces the engine's default"),
        pytest.param(
            _ON_FA3, [installed("mla", READS)], [], id="a missing backend cannot declare anything"
        ),
        pytest.param(
            _ON_FA3,
            [installed("mla", OPTS_OUT)],
            [(_SET_MLA,)],
            id="a missing backend can be replaced",
        ),
        pytest.param(
            _ON_FA3,
            [
                installed("fa3", READS),
                installed("mla", OPTS_OUT.model_copy(update={"roles": {Role.TARGET}})),
            ],
            [(_DECLARE_BOUND,)],
            id="a backend that does not take the role does not help",
        ),
        pytest.param(
            f"{_ON_FA3} {_TBO} --speculative-draft-attention-backend mla",
            [installed("fa3", OPTS_OUT), installed("mla", READS)],
            [(_LEAVE_OUT_TBO, "Set --speculative-draft-attention-backend fa3.")],
            id="the draft model's own backend",
        ),
    ],
)
def test_flips_name_all_that_must_change_together(
    line: str, backends: list[Backend], told: list[tuple[str, ...]]
) -> None:
    """A flip is the union of the remedies of everything that stands in the way."""
    found = _flips(line, named(*backends))

    assert _told(found) == told


def test_flip_says_from_what_to_what() -> None:
    """A flip names its capability, the value now, and the value it leads to."""
    backends = named(installed("fa3", READS), installed("mla", OPTS_OUT))

    found = _flips(_ON_FA3, backends)

    mirror = next(flip for flip in found if flip.capability == "host_seq_lens")
    assert (mirror.phase, mirror.value, mirror.becomes) == (
        None,
        HostSeqLens.EXACT,
        HostSeqLens.NONE,
    )


def test_flips_of_a_phase_name_it() -> None:
    """A phase's value has its own flips: here the next level, and each further kind of batch."""
    said = Capabilities(
        graph_metadata=GraphMetadata.HOST,
        graph_replay={BatchKind.SINGLE_TOKEN_DECODE, BatchKind.MIXED_BATCH},
    )

    found = _flips("--attention-backend fa3", named(installed("fa3", said)))

    of_decode = [
        (flip.capability, flip.becomes, [each.text for each in flip.remedies])
        for flip in found
        if flip.phase is Phase.DECODE and flip.capability.startswith("graph")
    ]
    assert of_decode == [
        (
            "graph_replay",
            frozenset(BatchKind),
            [
                (
                    "Have 'fa3' declare graph_replay=mixed_batch, single_token_decode, "
                    "uniform_batch, if that is true."
                )
            ],
        ),
        (
            "graph_metadata",
            GraphMetadata.DEVICE,
            ["Have 'fa3' declare graph_metadata=device, if that is true."],
        ),
    ]


def test_flips_of_a_set_add_one_member_at_a_time() -> None:
    """From no graphs at all, each kind of batch is one step."""
    found = _flips("--attention-backend fa3", named(installed("fa3")))

    steps = [
        flip.becomes
        for flip in found
        if (flip.capability, flip.phase) == ("graph_replay", Phase.DECODE)
    ]
    assert steps == [
        frozenset({BatchKind.MIXED_BATCH}),
        frozenset({BatchKind.SINGLE_TOKEN_DECODE}),
        frozenset({BatchKind.UNIFORM_BATCH}),
    ]


def test_flip_that_serves_two_steps_is_told_once() -> None:
    """A backend that takes two further kinds of batch is one flip, not one for each."""
    graphs = Capabilities(graph_replay={BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH})
    backends = named(installed("fa3"), installed("mla", graphs))

    found = _flips("--prefill-attention-backend fa3 --decode-attention-backend mla", backends)

    told = [
        [each.text for each in flip.remedies]
        for flip in found
        if (flip.capability, flip.phase) == ("graph_replay", Phase.PREFILL)
    ]
    assert told == [
        ["Have 'fa3' declare graph_replay=mixed_batch, if that is true."],
        ["Set --prefill-attention-backend mla."],
    ]


@pytest.mark.parametrize("capability", ["page_sizes", "max_speculative_topk"])
def test_flips_leave_limits_alone(capability: str) -> None:
    """Of sizes and limits there is no next better value."""
    line = f"{_ON_FA3} --speculative-eagle-topk 4"

    found = _flips(line, named(installed("fa3")))

    assert _told(found, capability) == []


def test_flips_of_a_permission_lead_to_it() -> None:
    """What is not permitted is flipped by permitting it."""
    found = _flips(f"--attention-backend fa3 {_TBO}", named(installed("fa3")))

    assert _told(found, "two_batch_overlap") == [
        ("Have 'fa3' declare two_batch_overlap=yes, if that is true.",)
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
    plan = resolve(uses_of(read, backends), read, rules=RuleSet.builtin("sglang-0.5.13"))

    found = flips(plan.raised("host_seq_lens", HostSeqLens.EXACT, "no bound"), backends, read)

    assert _told(found) == []


_TAKES_BOTH = OPTS_OUT.model_copy(update={"kv_cache_dtypes": {"fp8_e5m2", "fp8_e4m3"}})
_TAKES_ANY = OPTS_OUT.model_copy(update={"kv_cache_dtypes": "any"})


@pytest.mark.parametrize(
    ("given", "said", "line", "told"),
    [
        pytest.param(
            Given(kv_cache_dtype={"fp8_e5m2"}),
            OPTS_OUT,
            "--kv-cache-dtype fp8_e5m2",
            [("Set --kv-cache-dtype bfloat16.",)],
            id="by the usual dtype",
        ),
        pytest.param(
            Given(kv_cache_dtype={"fp8_e5m2"}),
            _TAKES_ANY,
            "--kv-cache-dtype fp8_e5m2",
            [("Set --kv-cache-dtype bfloat16.",)],
            id="by the usual dtype, of any",
        ),
        pytest.param(
            Given(kv_cache_dtype={"fp8_e4m3"}),
            _TAKES_BOTH,
            "--kv-cache-dtype fp8_e4m3",
            [("Set --kv-cache-dtype fp8_e5m2.",)],
            id="by another dtype that the backend takes",
        ),
        pytest.param(
            Given(kv_cache_dtype={"fp8_e5m2"}),
            OPTS_OUT,
            "",
            [("Set --kv-cache-dtype bfloat16.",)],
            id="while it is open",
        ),
        pytest.param(
            Given(kv_cache_dtype={"bfloat16"}),
            OPTS_OUT,
            "",
            [(_DECLARE_BOUND,)],
            id="by no dtype, if it asks for the usual",
        ),
        pytest.param(
            Given(enable_dp_attention=True),
            OPTS_OUT,
            "--enable-dp-attention",
            [("Leave out --enable-dp-attention.",)],
            id="by a switch",
        ),
        pytest.param(
            Given(kv_cache_dtype={"fp8_e5m2"}, enable_dp_attention=False),
            OPTS_OUT,
            "",
            [("Add --enable-dp-attention.",)],
            id="by a switch before a dtype",
        ),
        pytest.param(
            Given(enable_dp_attention=True), OPTS_OUT, "", [], id="not where it does not hold"
        ),
        pytest.param(
            Given(tp_size={1}), OPTS_OUT, "", [(_DECLARE_BOUND,)], id="by no number: redeclared"
        ),
    ],
)
def test_flips_avoid_a_condition(
    given: Given, said: Capabilities, line: str, told: list[tuple[str, ...]]
) -> None:
    """A condition that stands in the way is made false by a flag, where one does."""
    reads = When(given=given, capabilities=_READS_ONLY, reason="why")

    found = _flips(f"{_ON_FA3} {line}", named(installed("fa3", said, conditions=[reads])))

    assert _told(found) == told


def test_flips_avoid_no_condition_that_does_not_hold() -> None:
    """A condition that is false already needs no change."""
    holds, fails = (
        When(given=given, capabilities=_READS_ONLY, reason="why")
        for given in (Given(disable_cuda_graph=False), Given(enable_dp_attention=True))
    )

    found = _flips(_ON_FA3, named(installed("fa3", OPTS_OUT, conditions=[fails, holds])))

    assert _told(found) == [("Add --disable-cuda-graph.",)]


def test_flips_know_the_facts_of_the_plan() -> None:
    """What is known of the machine is known when resolving once more."""
    small = When(given=Given(head_size={64}), capabilities=_READS_ONLY, reason="why")
    backends = named(installed("fa3", OPTS_OUT, conditions=[small]))
    read = flags(f"{_ON_FA3} {_TBO}")
    plan = resolve(
        uses_of(read, backends),
        read,
        facts=Facts(head_size=128),
        rules=RuleSet.builtin("sglang-0.5.13"),
    )

    found = flips(plan, backends, read)

    assert _told(found) == [(_LEAVE_OUT_TBO,)]


def test_flips_avoid_no_condition_on_another_capability() -> None:
    """A condition that says nothing of a value is left alone."""
    graphs = When(
        given=Given(enable_dp_attention=False),
        capabilities=Capabilities(sync_free_prepare=True),
        reason="why",
    )

    found = _flips(_ON_FA3, named(installed("fa3", READS, conditions=[graphs])))

    assert _told(found) == [(_DECLARE_BOUND,)]


def test_flips_restate_conditions_unconditionally() -> None:
    """A declaration that a flip asks for takes the place of conditions on the same capability."""
    reads = When(given=Given(tp_size={1}), capabilities=_READS_ONLY, reason="why")

    found = _flips(_ON_FA3, named(installed("fa3", OPTS_OUT, conditions=[reads])))

    assert _told(found) == [(_DECLARE_BOUND,)]


def test_flips_leave_conditions_on_other_capabilities() -> None:
    """A declaration that a flip asks for leaves what other conditions say."""
    both = When(
        given=Given(tp_size={1}),
        capabilities=Capabilities(needs_cpu_seq_lens=True, sync_free_prepare=True),
        reason="why",
    )
    backends = named(installed("fa3", OPTS_OUT, conditions=[both]))

    found = _flips(_ON_FA3, backends)

    assert (_told(found), _told(found, "sync_free_prepare")) == ([(_DECLARE_BOUND,)], [])


def _forcing(name: str, given: Given) -> Rule:
    return Rule(name=name, given=given, forces=_READS_ONLY, reason="house rule")


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        pytest.param(
            [_forcing("a", Given(tp_size={1}))],
            [],
            id="a rule that no switch undoes: nothing helps",
        ),
        pytest.param(
            [_forcing("a", Given(enable_dp_attention=True, tp_size={1}))],
            [("Leave out --enable-dp-attention.",)],
            id="a rule with a switch among others",
        ),
        pytest.param(
            [
                _forcing("a", Given(enable_dp_attention=True)),
                _forcing("b", Given(enable_dp_attention=True)),
            ],
            [("Leave out --enable-dp-attention.",)],
            id="two rules by one switch: told once",
        ),
        pytest.param(
            [
                _forcing("a", Given(enable_dp_attention=True)),
                _forcing("b", Given(tp_size={1})),
            ],
            [],
            id="one of two rules cannot be undone: nothing helps",
        ),
        pytest.param(
            [
                _forcing("a", Given(enable_dp_attention=True)),
                _forcing("b", Given(enable_dp_attention=False)),
            ],
            [],
            id="two rules by both ways of one switch: nothing helps",
        ),
    ],
)
def test_flips_undo_rules_by_their_switches(rules: list[Rule], told: list[tuple[str, ...]]) -> None:
    """A rule is undone by a switch it asks for, and only if that really helps."""
    with_rules = RuleSet.builtin("sglang-0.5.13").with_rules(rules)

    found = _flips(
        f"{_ON_FA3} --enable-dp-attention", named(installed("fa3", OPTS_OUT)), rules=with_rules
    )

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
    plan = resolve([use("mine", READS)], read, rules=RuleSet.builtin("sglang-0.5.13"))

    found = flips(plan, backends, read)

    assert _told(found) == []


_SERVERS = [
    pytest.param(
        f"{_ON_FA3} {_TBO}", [installed("fa3", READS), installed("mla", OPTS_OUT)], id="a rule"
    ),
    pytest.param(
        f"--prefill-attention-backend fa3 --decode-attention-backend mla {SPECULATING}",
        [installed("fa3", READS), installed("mla", OPTS_OUT)],
        id="two phases",
    ),
    pytest.param(
        f"{_ON_FA3} --speculative-draft-attention-backend mla --enable-mixed-chunk",
        [installed("fa3"), installed("mla", READS), installed("triton", OPTS_OUT)],
        id="three backends",
    ),
]


@pytest.mark.parametrize(("line", "backends"), _SERVERS)
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
        plan = resolve(uses_of(read, registry), read, rules=RuleSet.builtin("sglang-0.5.13"))
        got.append(
            (plan[flip.capability, flip.phase] if flip.phase else plan[flip.capability]).value
        )

    assert got == [flip.becomes for flip in by_flags]
