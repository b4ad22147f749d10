from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from backend_caps import Plan
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Phase
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import Capabilities, GraphMetadata, HostSeqLens
from backend_caps.discovery.registry import Registry
from backend_caps.resolution.engine import RUNTIME
from backend_caps.resolution.errors import FlagsError
from backend_caps.resolution.flags import ServerFlags
from backend_caps.resolution.plan import CauseKind
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import Rule, RuleSet
from tests.unit.building import OPTS_OUT, RULES_13, RULES_23, faults_of, flags, install_sglang, use

_TBO = Given(enable_two_batch_overlap=True)
_BOUND = Capabilities(host_seq_lens=HostSeqLens.UPPER_BOUND)
_EXACT, _NONE = HostSeqLens.EXACT, HostSeqLens.NONE
_13, _23 = "sglang-0.5.13", "sglang-0.5.23"
_NO_PIECEWISE = "--disable-piecewise-cuda-graph"


def _rule(
    given: Given = _TBO, forces: Capabilities = _BOUND, *, engines: AbstractSet[str] = frozenset()
) -> Rule:
    return Rule(name="house", given=given, forces=forces, reason="so we decided", engines=engines)


_TWO = f"{_NO_PIECEWISE} --enable-two-batch-overlap"
_MIXED = "--enable-mixed-chunk --speculative-algorithm"
_ENFORCED = f"{_NO_PIECEWISE} --enforce-piecewise-cuda-graph --pp-size 2"


@pytest.mark.parametrize(
    ("rules", "line", "forcing"),
    [
        (RULES_13, _NO_PIECEWISE, []),
        (RULES_13, "", ["piecewise-cuda-graph"]),
        (RULES_13, _TWO, ["two-batch-overlap"]),
        (RULES_13, f"{_NO_PIECEWISE} --speculative-algorithm NGRAM", []),
        (RULES_13, f"{_NO_PIECEWISE} --enable-mixed-chunk", []),
        (RULES_13, f"{_NO_PIECEWISE} {_MIXED} EAGLE", []),
        (RULES_13, f"{_MIXED} EAGLE3", ["piecewise-cuda-graph"]),
        # SGLang 0.5.13 switches the piecewise graph off under these.
        *((RULES_13, line, []) for line in ("--enable-dp-attention", "--pp-size 2")),
        *((RULES_13, line, []) for line in ("--disaggregation-mode decode", "--device npu")),
        (RULES_13, _ENFORCED, ["piecewise-cuda-graph-enforced"]),
        (RULES_23, "", []),
        (RULES_23, "--enable-two-batch-overlap", ["two-batch-overlap"]),
        (RULES_23, "--speculative-algorithm NGRAM", ["ngram"]),
        (RULES_23, f"{_MIXED} DSPARK", []),
    ],
)
def test_builtin_rules_force_the_mirror(rules: RuleSet, line: str, forcing: list[str]) -> None:
    """Each version's rules force EXACT exactly where that version reads lengths on the host."""
    mirror = resolve([use("fa3", OPTS_OUT)], flags(line), rules=rules)["host_seq_lens"]

    of_rules = (cause for cause in mirror.causes if cause.kind is CauseKind.RULE)
    forced = [cause.name for cause in of_rules if cause.value is not _NONE]
    assert (forced, mirror.value) == (forcing, _EXACT if forcing else _NONE)


_ALGORITHMS = "DFLASH DSPARK EAGLE EAGLE3 FROZEN_KV_MTP MY_OWN NGRAM STANDALONE UNO"


@pytest.mark.parametrize(
    ("rules", "serial"),
    [
        pytest.param(RULES_13, {"NGRAM", "DFLASH", "FROZEN_KV_MTP"}, id=_13),
        pytest.param(RULES_23, set(), id=_23),
    ],
)
def test_builtin_rules_know_which_steps_are_overlapped(rules: RuleSet, serial: set[str]) -> None:
    """Each version overlaps the steps of its own algorithms, and of those nobody knows."""
    assert {name for name in _ALGORITHMS.split() if not rules.overlaps(name)} == serial


@pytest.mark.parametrize(
    ("engines", "taken"),
    [
        pytest.param(set(), True, id="every engine's"),
        pytest.param({_13, _23}, True, id="this engine's too"),
        pytest.param({_23}, False, id="another engine's"),
    ],
)
def test_third_party_rule_belongs_to_its_engines(engines: set[str], taken: bool) -> None:
    """A rule is added to the sets it names, or to all if it names none."""
    rule = _rule(engines=engines)

    assert (rule in RULES_13.with_rules([rule]).rules) is taken


_BOUND_LEVEL = HostSeqLens.UPPER_BOUND
_FORCED = ("house", _BOUND_LEVEL, Origin.FORCED, "so we decided (tp_size = 2)")
_DECLARED = ("fa3", _NONE, Origin.DECLARED, "declares host_seq_lens=none")


@pytest.mark.parametrize(("line", "cause"), [("--tp-size 2", _FORCED), ("", _DECLARED)])
def test_rule_forces_with_a_cause(line: str, cause: tuple[object, ...]) -> None:
    """A rule that holds is a cause with its reason and its condition; else it leaves no trace."""
    rules = RULES_13.with_rules([_rule(Given(tp_size={2}))])

    plan = resolve([use("fa3", OPTS_OUT)], flags(f"{_NO_PIECEWISE} {line}"), rules=rules)

    first = plan["host_seq_lens"].causes[0]
    assert (first.name, first.value, first.origin, first.reason) == cause


def test_rule_whose_condition_is_open_counts() -> None:
    """While nobody knows whether a rule holds, it does."""
    rules = RULES_13.with_rules([_rule(Given(device={"npu"}))])

    plan = resolve([use("fa3", OPTS_OUT)], flags(_NO_PIECEWISE), rules=rules)

    first = plan["host_seq_lens"].causes[0]
    told = "so we decided (not known yet: device = npu)"
    assert (first.value, first.origin, first.reason) == (_BOUND_LEVEL, Origin.UNDECIDED, told)


def test_rule_never_improves_a_value() -> None:
    """A rule that forces less than the backends need changes nothing."""
    rules = RULES_13.with_rules([_rule(Given(tp_size={1}))])

    plan = resolve([use("fa3")], flags(_NO_PIECEWISE), rules=rules)

    assert plan["host_seq_lens"].value is _EXACT


def test_rule_over_a_phase_forces_that_phase() -> None:
    """A rule may ask for a phase, and then forces the value of that phase alone."""
    rule = _rule(Given(phase={Phase.DECODE}), Capabilities(graph_metadata=GraphMetadata.HOST))
    graphs = Capabilities(graph_metadata=GraphMetadata.IN_GRAPH)
    uses = [use("fa3", graphs, phase=phase) for phase in (Phase.DECODE, Phase.PREFILL)]

    plan = resolve(uses, flags(), rules=RULES_13.with_rules([rule]))

    values = [plan["graph_metadata", phase].value for phase in (Phase.DECODE, Phase.PREFILL)]
    assert values == [GraphMetadata.HOST, GraphMetadata.IN_GRAPH]


_OF_USES = Capabilities(devices={"cuda"}, roles={"target"}, two_batch_overlap=False)
_SCOPES = "a rule forces capabilities of scope server or phase."


@pytest.mark.parametrize(
    ("forces", "text"),
    [
        (Capabilities(), "forces nothing; state what it forces."),
        (_OF_USES, f"forces devices, roles, which a plan does not hold; {_SCOPES}"),
    ],
    ids=["nothing", "what a plan does not hold"],
)
def test_rule_that_forces_no_plan_value_is_refused(forces: Capabilities, text: str) -> None:
    """A rule must force a value that plans have."""
    faults = faults_of(lambda: _rule(forces=forces))

    assert faults == [("", f"Value error, rule 'house' {text}")]


@pytest.mark.parametrize("field", ["name", "reason"])
def test_rule_without_words_is_refused(field: str) -> None:
    """A rule has a name and says why."""
    assert faults_of(lambda: _rule().model_copy(update={field: " "})) == [
        (field, "String should have at least 1 character")
    ]


def test_rule_survives_json() -> None:
    """A rule crosses into another process as JSON and is the same there."""
    rule = _rule(engines={_23, _13})

    carried = Rule.model_validate_json(rule.model_dump_json())

    assert (carried, rule.model_dump(mode="json")["engines"]) == (rule, [_13, _23])


@pytest.mark.parametrize(
    ("version", "name", "why"),
    [
        pytest.param("0.5.13", _13, "the installed version", id="known"),
        pytest.param(
            "0.6.0", _23, "the newest known; the installed sglang-0.6.0 is not", id="not known"
        ),
        pytest.param(None, _23, "the newest known; no SGLang is installed", id="none"),
    ],
)
def test_engine_that_is_not_named_is_the_installed_one(
    version: str | None, name: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Plan, registry and flags take the installed SGLang's version, else the newest, and say so."""
    if version is not None:
        install_sglang(version, tmp_path, monkeypatch)

    plan, rules = resolve([use()], flags()), Registry.of(()).rules()
    newest_only = ["--dcp-size", "2"]  # 0.5.13 has no such flag, and it looks like --dp-size

    assert (plan.rules.name, rules.name) == (name, name)
    assert str(plan).splitlines()[0] == f"plan {plan.fingerprint} under {name} ({why})"
    assert rules.chosen_because == why
    if name == _23:
        assert ServerFlags.from_argv(newest_only).unrelated == ("--dcp-size",)
    else:
        with pytest.raises(FlagsError):
            ServerFlags.from_argv(newest_only)


def test_engine_that_is_named_needs_no_reason() -> None:
    """Whoever names rules knows why."""
    assert (str(Registry.of(()).rules(_13)), RULES_13.chosen_because) == (_13, None)


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
