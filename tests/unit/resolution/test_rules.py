from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from backend_caps.capability.facts import Given
from backend_caps.capability.kind import Phase
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import Capabilities, GraphMetadata, HostSeqLens
from backend_caps.resolution.plan import CauseKind
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import Rule, RuleSet
from tests.unit.building import OPTS_OUT, error_of, faults_of, flags, use

_TBO = Given(enable_two_batch_overlap=True)
_BOUND = Capabilities(host_seq_lens=HostSeqLens.UPPER_BOUND)
_EXACT, _NONE = HostSeqLens.EXACT, HostSeqLens.NONE
_13, _23 = "sglang-0.5.13", "sglang-0.5.23"
_NO_PIECEWISE = "--disable-piecewise-cuda-graph"


def _rule(
    given: Given = _TBO,
    forces: Capabilities = _BOUND,
    *,
    engines: AbstractSet[str] = frozenset(),
) -> Rule:
    return Rule(name="house", given=given, forces=forces, reason="so we decided", engines=engines)


@pytest.mark.parametrize(
    ("engine", "line", "forcing"),
    [
        pytest.param(_13, _NO_PIECEWISE, [], id="0.5.13, nothing forces"),
        pytest.param(_13, "", ["piecewise-cuda-graph"], id="0.5.13, piecewise graph"),
        pytest.param(
            _13,
            f"{_NO_PIECEWISE} --enable-two-batch-overlap",
            ["two-batch-overlap"],
            id="0.5.13, two-batch overlap",
        ),
        pytest.param(_13, f"{_NO_PIECEWISE} --speculative-algorithm NGRAM", [], id="0.5.13, ngram"),
        pytest.param(_13, f"{_NO_PIECEWISE} --enable-mixed-chunk", [], id="0.5.13, mixed alone"),
        pytest.param(
            _13,
            f"{_NO_PIECEWISE} --enable-mixed-chunk --speculative-algorithm EAGLE",
            ["mixed-chunk-with-speculation"],
            id="0.5.13, mixed with EAGLE",
        ),
        pytest.param(
            _13,
            "--enable-mixed-chunk --speculative-algorithm EAGLE3 --enable-two-batch-overlap",
            ["mixed-chunk-with-speculation", "piecewise-cuda-graph", "two-batch-overlap"],
            id="0.5.13, all",
        ),
        *(
            pytest.param(_13, line, [], id=f"0.5.13 switches the piecewise graph off: {line}")
            for line in (
                "--enable-dp-attention",
                "--pp-size 2",
                "--disaggregation-mode decode",
                "--device npu",
            )
        ),
        pytest.param(
            _13,
            f"{_NO_PIECEWISE} --enforce-piecewise-cuda-graph --pp-size 2",
            ["piecewise-cuda-graph-enforced"],
            id="0.5.13, piecewise graph whatever else is said",
        ),
        pytest.param(_23, "", [], id="0.5.23, nothing forces"),
        pytest.param(
            _23, "--enable-two-batch-overlap", ["two-batch-overlap"], id="0.5.23, two-batch overlap"
        ),
        pytest.param(_23, "--speculative-algorithm NGRAM", ["ngram"], id="0.5.23, ngram"),
        pytest.param(
            _23,
            "--enable-mixed-chunk --speculative-algorithm DSPARK",
            ["mixed-chunk-with-speculation"],
            id="0.5.23, mixed with DSPARK",
        ),
    ],
)
def test_builtin_rules_force_the_mirror(engine: str, line: str, forcing: list[str]) -> None:
    """Each version's rules force EXACT exactly where that version reads lengths on the host."""
    plan = resolve([use("fa3", OPTS_OUT)], flags(line), rules=RuleSet.builtin(engine))

    mirror = plan["host_seq_lens"]
    forced = [cause.name for cause in mirror.causes if cause.kind is CauseKind.RULE]
    assert (forced, mirror.value) == (forcing, _EXACT if forcing else _NONE)


@pytest.mark.parametrize(
    ("engine", "overlapping", "serial"),
    [
        pytest.param(
            _13, {"EAGLE", "EAGLE3", "STANDALONE"}, {"NGRAM", "DFLASH", "FROZEN_KV_MTP"}, id=_13
        ),
        pytest.param(
            _23,
            {
                "DFLASH",
                "DSPARK",
                "EAGLE",
                "EAGLE3",
                "FROZEN_KV_MTP",
                "NGRAM",
                "STANDALONE",
                "UNO",
            },
            set(),
            id=_23,
        ),
    ],
)
def test_builtin_rules_know_which_steps_are_overlapped(
    engine: str, overlapping: set[str], serial: set[str]
) -> None:
    """Each version overlaps the steps of its own algorithms, and of those nobody knows."""
    rules = RuleSet.builtin(engine)

    told = {name for name in {*overlapping, *serial, "MY_OWN"} if rules.overlaps(name)}

    assert told == {*overlapping, "MY_OWN"}


def test_unknown_rule_set_is_an_error() -> None:
    """A name that there is no rule set of is an error that lists those there are."""
    error = error_of(lambda: RuleSet.builtin("sglang-0.6"))

    assert error == (
        "no rule set 'sglang-0.6' is known; known: backend-caps-1, sglang-0.5.13, "
        "sglang-0.5.23. Name one of them, or make a RuleSet of your own."
    )


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

    rules = RuleSet.builtin(_13).with_rules([rule])

    assert (rule in rules.rules) is taken


def test_rule_forces_with_a_cause() -> None:
    """A rule that holds is a cause with its reason and its condition."""
    rules = RuleSet.builtin(_13).with_rules([_rule(Given(tp_size={2}))])

    plan = resolve([use("fa3", OPTS_OUT)], flags(f"{_NO_PIECEWISE} --tp-size 2"), rules=rules)

    mirror = plan["host_seq_lens"]
    cause = mirror.causes[0]
    assert (mirror.value, cause.name, cause.origin, cause.reason) == (
        HostSeqLens.UPPER_BOUND,
        "house",
        Origin.FORCED,
        "so we decided (tp_size = 2)",
    )


def test_rule_whose_condition_is_open_counts() -> None:
    """While nobody knows whether a rule holds, it does."""
    rules = RuleSet.builtin(_13).with_rules([_rule(Given(device={"npu"}))])

    plan = resolve([use("fa3", OPTS_OUT)], flags(_NO_PIECEWISE), rules=rules)

    cause = plan["host_seq_lens"].causes[0]
    assert (cause.value, cause.origin, cause.reason) == (
        HostSeqLens.UPPER_BOUND,
        Origin.UNDECIDED,
        "so we decided (not known yet: device = npu)",
    )


def test_rule_whose_condition_fails_is_no_cause() -> None:
    """A rule that does not hold leaves no trace."""
    rules = RuleSet.builtin(_13).with_rules([_rule(Given(tp_size={2}))])

    plan = resolve([use("fa3", OPTS_OUT)], flags(_NO_PIECEWISE), rules=rules)

    assert [cause.name for cause in plan["host_seq_lens"].causes] == ["fa3"]


def test_rule_never_improves_a_value() -> None:
    """A rule that forces less than the backends need changes nothing."""
    rules = RuleSet.builtin(_13).with_rules([_rule(Given(tp_size={1}))])

    plan = resolve([use("fa3")], flags(_NO_PIECEWISE), rules=rules)

    assert plan["host_seq_lens"].value is _EXACT


def test_rule_over_a_phase_forces_that_phase() -> None:
    """A rule may ask for a phase, and then forces the value of that phase alone."""
    given = Given(phase={Phase.DECODE})
    rule = _rule(given, Capabilities(graph_metadata=GraphMetadata.HOST))
    graphs = Capabilities(graph_metadata=GraphMetadata.IN_GRAPH)
    uses = [use("fa3", graphs, phase=phase) for phase in (Phase.DECODE, Phase.PREFILL)]

    plan = resolve(uses, flags(), rules=RuleSet.builtin(_13).with_rules([rule]))

    values = [plan["graph_metadata", phase].value for phase in (Phase.DECODE, Phase.PREFILL)]
    assert values == [GraphMetadata.HOST, GraphMetadata.IN_GRAPH]


@pytest.mark.parametrize(
    ("forces", "text"),
    [
        pytest.param(
            Capabilities(),
            "Value error, rule 'house' forces nothing; state what it forces.",
            id="nothing",
        ),
        pytest.param(
            Capabilities(devices={"cuda"}, roles={"target"}, two_batch_overlap=False),
            "Value error, rule 'house' forces devices, roles, which a plan does not hold; "
            "a rule forces capabilities of scope server or phase.",
            id="what a plan does not hold",
        ),
    ],
)
def test_rule_that_forces_no_plan_value_is_refused(forces: Capabilities, text: str) -> None:
    """A rule must force a value that plans have."""
    faults = faults_of(lambda: _rule(forces=forces))

    assert faults == [("", text)]


@pytest.mark.parametrize("field", ["name", "reason"])
def test_rule_without_words_is_refused(field: str) -> None:
    """A rule has a name and says why."""
    faults = faults_of(lambda: _rule().model_copy(update={field: " "}))

    assert faults == [(field, "String should have at least 1 character")]


def test_rule_survives_json() -> None:
    """A rule crosses into another process as JSON and is the same there."""
    rule = _rule(engines={_23, _13})

    carried = Rule.model_validate_json(rule.model_dump_json())

    assert (carried, rule.model_dump(mode="json")["engines"]) == (rule, [_13, _23])


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        pytest.param("0.5.13", "sglang-0.5.13", id="with rules"),
        pytest.param("0.6.0", "sglang-0.5.23", id="without rules"),
        pytest.param(None, "sglang-0.5.23", id="none installed"),
    ],
)
def test_rules_are_those_of_the_installed_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str | None, expected: str
) -> None:
    """Without rules, a plan is of the installed engine's, else of the newest built-in ones."""
    if installed is not None:
        metadata = tmp_path / f"sglang-{installed}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: sglang\nVersion: {installed}\n")
        monkeypatch.syspath_prepend(tmp_path)

    plan = resolve([use()], flags())

    assert plan.rules.name == expected
