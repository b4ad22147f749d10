from __future__ import annotations

import pytest

from backend_caps.capability.declaration import Declaration, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
from backend_caps.resolution.plan import Cause
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.uses import Use
from tests.unit.building import OPTS_OUT, READS, SPECULATING, flags, use

_EXACT, _BOUND, _NONE = HostSeqLens.EXACT, HostSeqLens.UPPER_BOUND, HostSeqLens.NONE
_BOUNDED = Capabilities(host_seq_lens=_BOUND)
_FP8 = When(
    given=Given(kv_cache_dtype={"fp8_e5m2"}), capabilities=READS, reason="fp8 sizes on the host"
)
_WIDE = When(
    given=Given(tp_size={2, 4}), capabilities=_BOUNDED, reason="two ranks share a workspace"
)
_FREE = When(given=Given(page_size={64}), capabilities=OPTS_OUT, reason="64 fits")


def _cause(
    capabilities: Capabilities, conditions: list[When], line: str, facts: Facts | None = None
) -> Cause:
    uses = [use("fa3", capabilities, conditions=conditions)]
    plan = resolve(uses, flags(f"{SPECULATING} {line}"), facts=facts)
    (cause,) = plan["host_seq_lens"].causes
    return cause


@pytest.mark.parametrize(
    ("line", "value", "origin", "reason"),
    [
        pytest.param(
            "--kv-cache-dtype fp8_e5m2",
            _EXACT,
            Origin.CONDITIONAL,
            "fp8 sizes on the host (kv_cache_dtype = fp8_e5m2)",
            id="holds",
        ),
        pytest.param(
            "--kv-cache-dtype fp8_e4m3",
            _NONE,
            Origin.DECLARED,
            "declares host_seq_lens=none",
            id="does not hold",
        ),
        pytest.param(
            "--kv-cache-dtype auto",
            _EXACT,
            Origin.UNDECIDED,
            "fp8 sizes on the host (not known yet: kv_cache_dtype = fp8_e5m2)",
            id="open",
        ),
    ],
)
def test_condition_towards_worse_is_decided_by_the_flags(
    line: str, value: HostSeqLens, origin: Origin, reason: str
) -> None:
    """A condition that holds gives its value, one that fails the base, an open one both joined."""
    cause = _cause(OPTS_OUT, [_FP8], line)

    assert (cause.value, cause.origin, cause.reason) == (value, origin, reason)


@pytest.mark.parametrize(
    ("line", "value", "origin", "reason"),
    [
        pytest.param(
            "--page-size 64", _NONE, Origin.CONDITIONAL, "64 fits (page_size = 64)", id="holds"
        ),
        pytest.param(
            "--page-size 1",
            _EXACT,
            Origin.DECLARED,
            "declares host_seq_lens=exact",
            id="does not hold",
        ),
        pytest.param("", _EXACT, Origin.DECLARED, "declares host_seq_lens=exact", id="open"),
    ],
)
def test_condition_towards_better_counts_only_where_it_holds(
    line: str, value: HostSeqLens, origin: Origin, reason: str
) -> None:
    """An optimistic condition that is still open changes nothing."""
    cause = _cause(READS, [_FREE], line)

    assert (cause.value, cause.origin, cause.reason) == (value, origin, reason)


def test_condition_is_decided_by_facts_before_flags() -> None:
    """What is known of the machine decides what a flag leaves open."""
    cause = _cause(OPTS_OUT, [_FP8], "", Facts(kv_cache_dtype="fp8_e5m2"))

    assert (cause.value, cause.origin) == (_EXACT, Origin.CONDITIONAL)


@pytest.mark.parametrize(
    ("conditions", "line", "value", "reason"),
    [
        pytest.param(
            [_FP8, _WIDE],
            "--kv-cache-dtype fp8_e5m2 --tp-size 2",
            _EXACT,
            "fp8 sizes on the host (kv_cache_dtype = fp8_e5m2)",
            id="the worse of two that hold",
        ),
        pytest.param(
            [_WIDE, _FP8],
            "--kv-cache-dtype fp8_e5m2 --tp-size 2",
            _EXACT,
            "fp8 sizes on the host (kv_cache_dtype = fp8_e5m2)",
            id="in whichever order",
        ),
        pytest.param(
            [_FP8, _WIDE],
            "--tp-size 2",
            _EXACT,
            "fp8 sizes on the host (not known yet: kv_cache_dtype = fp8_e5m2)",
            id="one holds, a worse one is open",
        ),
        pytest.param(
            [_WIDE, _FREE],
            "--tp-size 2",
            _BOUND,
            "two ranks share a workspace (tp_size in 2, 4)",
            id="one holds, a better one is open",
        ),
    ],
)
def test_conditions_that_hold_join(
    conditions: list[When], line: str, value: HostSeqLens, reason: str
) -> None:
    """Of several conditions that hold or are open, the worst value counts, in its own words."""
    cause = _cause(OPTS_OUT, conditions, line)

    assert (cause.value, cause.reason) == (value, reason)


def test_conditions_whose_join_is_neither_are_both_quoted() -> None:
    """Where two conditions together give a value that neither has, both are the reason."""
    first = When(
        given=Given(tp_size={1}),
        capabilities=Capabilities(page_sizes={"multiple_of": 4}),
        reason="by four",
    )
    second = When(
        given=Given(dp_size={1}),
        capabilities=Capabilities(page_sizes={"multiple_of": 6}),
        reason="by six",
    )
    plan = resolve([use("fa3", conditions=[first, second])], flags())

    (cause,) = plan["page_sizes"].causes

    assert (str(cause.value), cause.reason) == (
        "multiples of 12",
        "by four (tp_size = 1); by six (dp_size = 1)",
    )


def test_condition_replaces_its_own_capabilities_alone() -> None:
    """A condition over one capability leaves the others at their base."""
    base = Capabilities(
        needs_cpu_seq_lens=False, max_context_len_known=True, two_batch_overlap=True
    )
    uses = [use("fa3", base, conditions=[_FP8])]

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
    when = When(
        given=Given(role={Role.TARGET}, phase={Phase.DECODE}), capabilities=READS, reason="why"
    )

    plan = resolve(
        [use("fa3", OPTS_OUT, role=role, phase=phase, conditions=[when])], flags(SPECULATING)
    )

    assert plan["host_seq_lens"].value is value


@pytest.mark.parametrize(
    ("capabilities", "value", "origin", "reason"),
    [
        pytest.param(
            Capabilities(host_seq_lens=_NONE, max_context_len_known=True),
            _NONE,
            Origin.DECLARED,
            "declares host_seq_lens=none",
            id="known",
        ),
        pytest.param(
            Capabilities(host_seq_lens=_NONE),
            _EXACT,
            Origin.UNDECLARED,
            "declares host_seq_lens=none, but not max_context_len_known, which it needs",
            id="not stated",
        ),
        pytest.param(
            Capabilities(host_seq_lens=_BOUND, max_context_len_known=False),
            _EXACT,
            Origin.DECLARED,
            "declares host_seq_lens=upper_bound, but not max_context_len_known, which it needs",
            id="denied",
        ),
        pytest.param(
            Capabilities(host_seq_lens=_EXACT),
            _EXACT,
            Origin.DECLARED,
            "declares host_seq_lens=exact",
            id="not needed for EXACT",
        ),
        pytest.param(
            Capabilities(max_context_len_known=True),
            _EXACT,
            Origin.UNDECLARED,
            "does not declare host_seq_lens",
            id="without an opt-out",
        ),
    ],
)
def test_opting_out_requires_the_longest_context(
    capabilities: Capabilities, value: HostSeqLens, origin: Origin, reason: str
) -> None:
    """An opt-out from the mirror counts only with `max_context_len_known`."""
    cause = _cause(capabilities, [], "")

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
    knows = When(
        given=Given(page_size={64}),
        capabilities=Capabilities(max_context_len_known=True),
        reason="64 fits",
    )

    cause = _cause(Capabilities(host_seq_lens=_NONE), [knows], line)

    assert (cause.value, cause.origin) == (value, origin)


@pytest.mark.parametrize(
    ("capabilities", "causes"),
    [
        pytest.param(READS, [("hybrid", _EXACT)], id="adds a need"),
        pytest.param(
            Capabilities(host_seq_lens=_NONE), [("hybrid", _NONE)], id="an opt-out of its own"
        ),
        pytest.param(Capabilities(two_batch_overlap=True), [], id="says nothing of it"),
    ],
)
def test_composite_says_what_it_states_alone(
    capabilities: Capabilities, causes: list[tuple[str, HostSeqLens]]
) -> None:
    """What a composite leaves out is its parts' to say, and no undeclared value."""
    own = Use(
        backend="hybrid",
        role=Role.TARGET,
        phase=Phase.DECODE,
        declaration=Declaration(capabilities=capabilities),
        adds_only=True,
    )

    plan = resolve([own, use("fa3", phase=Phase.PREFILL)], flags(SPECULATING))

    found = [(cause.name, cause.value) for cause in plan["host_seq_lens"].causes]
    assert found == causes


@pytest.mark.parametrize(
    ("dtype", "causes"),
    [
        pytest.param("fp8_e5m2", [(_EXACT, Origin.CONDITIONAL)], id="holds"),
        pytest.param("auto", [(_EXACT, Origin.UNDECIDED)], id="open"),
        pytest.param("fp8_e4m3", [], id="does not hold"),
    ],
)
def test_composite_says_what_it_states_under_a_condition(
    dtype: str, causes: list[tuple[HostSeqLens, Origin]]
) -> None:
    """A condition of a composite adds where it holds or is open, and is silent elsewhere."""
    own = Use(
        backend="hybrid",
        role=Role.TARGET,
        phase=Phase.DECODE,
        declaration=Declaration(conditions=[_FP8]),
        adds_only=True,
    )

    plan = resolve([own], flags(f"{SPECULATING} --kv-cache-dtype {dtype}"))

    found = [(cause.value, cause.origin) for cause in plan["host_seq_lens"].causes]
    assert found == causes
