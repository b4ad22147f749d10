from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import UNDECLARED, Phase, Role, Undeclared
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
from backend_caps.resolution.plan import Cause
from backend_caps.resolution.resolver import resolve
from tests.unit.building import OPTS_OUT, READS, SPECULATING, flags, use

_EXACT, _BOUND, _NONE = HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND, HostSeqLens.NONE
_BOUNDED = Capabilities(host_seq_lens=_BOUND)


def _when(given: dict[str, object], capabilities: Capabilities, reason: str = "why") -> When:
    return When(given=Given.model_validate(given), capabilities=capabilities, reason=reason)


_FP8 = _when({"kv_cache_dtype": {"fp8_e5m2"}}, READS, "fp8 sizes on the host")
_WIDE = _when({"tp_size": {2, 4}}, _BOUNDED, "two ranks share a workspace")
_FREE = _when({"page_size": {64}}, OPTS_OUT, "64 fits")


def _cause(
    capabilities: Capabilities, conditions: list[When], line: str, facts: Facts | None = None
) -> Cause:
    uses = [use("fa3", capabilities, conditions=conditions)]
    plan = resolve(uses, flags(f"{SPECULATING} {line}"), facts=facts)
    (cause,) = plan["host_seq_lens"].causes
    return cause


_IF_FP8 = "fp8 sizes on the host ({}kv_cache_dtype = fp8_e5m2)"
_OPEN = "not known yet: "


@pytest.mark.parametrize(
    ("said", "when", "line", "origin", "reason"),
    [
        (OPTS_OUT, _FP8, "--kv-cache-dtype fp8_e5m2", Origin.CONDITIONAL, _IF_FP8.format("")),
        (OPTS_OUT, _FP8, "--kv-cache-dtype fp8_e4m3", Origin.DECLARED, "declares {}"),
        (OPTS_OUT, _FP8, "--kv-cache-dtype auto", Origin.UNDECIDED, _IF_FP8.format(_OPEN)),
        (READS, _FREE, "--page-size 64", Origin.CONDITIONAL, "64 fits (page_size = 64)"),
        (READS, _FREE, "--page-size 1", Origin.DECLARED, "declares {}"),
        (READS, _FREE, "", Origin.DECLARED, "declares {}"),
    ],
)
def test_condition_is_decided_by_the_flags(
    said: Capabilities, when: When, line: str, origin: Origin, reason: str
) -> None:
    """One that holds gives its value, one that fails the base, an open one the worse of both."""
    cause = _cause(said, [when], line)

    value = said.host_seq_lens if origin is Origin.DECLARED else when.capabilities.host_seq_lens
    assert isinstance(value, HostSeqLens)
    told = reason.format(f"host_seq_lens={value.value}")
    assert (cause.value, cause.origin, cause.reason) == (value, origin, told)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        pytest.param({"speculative_algorithm": {"eagle"}}, "", id="lower case"),
        pytest.param({"speculative_algorithm": {"NEXTN"}}, "", id="an algorithm's other name"),
        pytest.param({"kv_cache_dtype": {"bf16"}}, "--kv-cache-dtype bf16", id="a dtype's"),
        pytest.param({"device": {"cuda:0"}}, "--device cuda:1", id="a device's number"),
    ],
)
def test_condition_holds_in_any_spelling(given: dict[str, object], line: str) -> None:
    """A condition holds however its names are spelled."""
    assert _cause(OPTS_OUT, [_when(given, READS)], line).origin is Origin.CONDITIONAL


def test_condition_is_decided_by_facts_before_flags() -> None:
    """What is known of the machine decides what a flag leaves open."""
    cause = _cause(OPTS_OUT, [_FP8], "", Facts(kv_cache_dtype="fp8_e5m2"))

    assert (cause.value, cause.origin) == (_EXACT, Origin.CONDITIONAL)


_TWO_RANKS = "two ranks share a workspace (tp_size in 2, 4)"


@pytest.mark.parametrize(
    ("conditions", "dtype", "value", "reason"),
    [
        pytest.param([_FP8, _WIDE], "fp8_e5m2", _EXACT, _IF_FP8.format(""), id="both hold"),
        pytest.param([_WIDE, _FP8], "fp8_e5m2", _EXACT, _IF_FP8.format(""), id="in any order"),
        pytest.param([_FP8, _WIDE], "auto", _EXACT, _IF_FP8.format(_OPEN), id="the worse is open"),
        pytest.param([_WIDE, _FREE], "auto", _BOUND, _TWO_RANKS, id="the better is open"),
    ],
)
def test_conditions_that_hold_join(
    conditions: list[When], dtype: str, value: HostSeqLens, reason: str
) -> None:
    """Of several conditions that hold or are open, the worst value counts, in its own words."""
    cause = _cause(OPTS_OUT, conditions, f"--tp-size 2 --kv-cache-dtype {dtype}")

    assert (cause.value, cause.reason) == (value, reason)


def test_conditions_whose_join_is_neither_are_both_quoted() -> None:
    """Where two conditions together give a value that neither has, both are the reason."""
    fours, sixes = (Capabilities(page_sizes={"multiple_of": size}) for size in (4, 6))
    whens = [_when({"tp_size": {1}}, fours, "by four"), _when({"dp_size": {1}}, sixes, "by six")]

    (cause,) = resolve([use("fa3", conditions=whens)], flags())["page_sizes"].causes

    told = "by four (tp_size = 1); by six (dp_size = 1)"
    assert (str(cause.value), cause.reason) == ("multiples of 12", told)


def test_condition_replaces_its_own_capabilities_alone() -> None:
    """A condition over one capability leaves the others at their base."""
    uses = [use("fa3", Capabilities(two_batch_overlap=True), conditions=[_FP8])]

    plan = resolve(uses, flags("--kv-cache-dtype fp8_e5m2"))

    assert plan["two_batch_overlap"].value is True


@pytest.mark.parametrize(
    ("role", "phase", "value"),
    [
        pytest.param(Role.TARGET, Phase.DECODE, _EXACT, id="this role and phase"),
        pytest.param(Role.TARGET, Phase.VERIFY, _NONE, id="another phase"),
        pytest.param(Role.DRAFT, Phase.DECODE, _NONE, id="another role"),
    ],
)
def test_condition_may_ask_for_the_use(role: Role, phase: Phase, value: HostSeqLens) -> None:
    """A condition knows in which role and phase its backend is used."""
    when = _when({"role": {Role.TARGET}, "phase": {Phase.DECODE}}, READS)
    uses = [use("fa3", OPTS_OUT, role=role, phase=phase, conditions=[when])]

    assert resolve(uses, flags(SPECULATING))["host_seq_lens"].value is value


_LACKS = "declares host_seq_lens={}, but not max_context_len_known, which it needs"


@pytest.mark.parametrize(
    ("said", "value", "origin", "reason"),
    [
        ((_NONE, True), _NONE, Origin.DECLARED, "declares host_seq_lens=none"),
        ((_NONE, UNDECLARED), _EXACT, Origin.UNDECLARED, _LACKS.format("none")),
        ((_BOUND, False), _EXACT, Origin.DECLARED, _LACKS.format("upper_bound")),
        ((_EXACT, UNDECLARED), _EXACT, Origin.DECLARED, "declares host_seq_lens=exact"),
        ((UNDECLARED, True), _EXACT, Origin.UNDECLARED, "does not declare host_seq_lens"),
    ],
)
def test_opting_out_requires_the_longest_context(
    said: tuple[HostSeqLens | Undeclared, bool | Undeclared],
    value: HostSeqLens,
    origin: Origin,
    reason: str,
) -> None:
    """An opt-out from the mirror counts only with `max_context_len_known`."""
    level, is_known = said

    cause = _cause(Capabilities(host_seq_lens=level, max_context_len_known=is_known), [], "")

    assert (cause.value, cause.origin, cause.reason) == (value, origin, reason)


@pytest.mark.parametrize(
    ("line", "value", "origin"),
    [
        pytest.param("--page-size 64", _NONE, Origin.DECLARED, id="holds"),
        pytest.param("--page-size 1", _EXACT, Origin.UNDECLARED, id="does not hold"),
        pytest.param("", _EXACT, Origin.UNDECLARED, id="open"),
    ],
)
def test_longest_context_may_be_known_under_a_condition(
    line: str, value: HostSeqLens, origin: Origin
) -> None:
    """The capability that an opt-out requires is itself decided by conditions."""
    knows = _when({"page_size": {64}}, Capabilities(max_context_len_known=True))

    cause = _cause(Capabilities(host_seq_lens=_NONE), [knows], line)

    assert (cause.value, cause.origin) == (value, origin)


_OPTS_OUT = Capabilities(host_seq_lens=_NONE)
_DENIES = Capabilities(max_context_len_known=False)


@pytest.mark.parametrize(
    ("said", "dtype", "causes"),
    [
        pytest.param(READS, "auto", [(_EXACT, Origin.DECLARED)], id="a need"),
        pytest.param(_OPTS_OUT, "auto", [(_NONE, Origin.DECLARED)], id="an opt-out"),
        pytest.param(_DENIES, "auto", [(_EXACT, Origin.DECLARED)], id="denies its parts'"),
        pytest.param(Capabilities(two_batch_overlap=True), "auto", [], id="else"),
        pytest.param(_FP8, "fp8_e5m2", [(_EXACT, Origin.CONDITIONAL)], id="if"),
        pytest.param(_FP8, "auto", [(_EXACT, Origin.UNDECIDED)], id="if, open"),
        pytest.param(_FP8, "fp8_e4m3", [], id="if, and it does not hold"),
    ],
)
def test_composite_says_what_it_states_alone(
    said: Capabilities | When, dtype: str, causes: list[tuple[HostSeqLens, Origin]]
) -> None:
    """What a composite leaves out is its parts' to say, and no undeclared value."""
    words = {"conditions": [said]} if isinstance(said, When) else {"capabilities": said}
    own = Declaration.model_validate(words)
    hybrid = replace(use("hybrid"), declaration=own, adds_only=True)

    plan = resolve([hybrid], flags(f"{SPECULATING} --kv-cache-dtype {dtype}"))

    assert [(each.value, each.origin) for each in plan["host_seq_lens"].causes] == causes
