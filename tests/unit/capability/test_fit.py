from __future__ import annotations

import pytest

from backend_caps.capability.facts import Facts
from backend_caps.capability.fit import CHECKED_AGAINST, Reason, text_of, unsupported_reasons
from backend_caps.capability.kind import Role
from backend_caps.capability.scale import ANY
from backend_caps.capability.sets import ComputeRange
from backend_caps.capability.sizes import Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    NO_LIMIT,
    AttentionArch,
    Capabilities,
    HostSeqLens,
)

_FACTS = Facts(
    device="cuda",
    compute_capability=(9, 0),
    dtype="bfloat16",
    kv_cache_dtype="fp8_e5m2",
    head_size=128,
    page_size=64,
    attention_arch=AttentionArch.MLA,
)
_FITS = Capabilities(
    devices={"cuda", "xpu"},
    compute_capability=[ComputeRange((8, 0), (9, 0)), ComputeRange((9, 0))],
    dtypes=ANY,
    kv_cache_dtypes={"fp8_e5m2"},
    head_sizes=MultipleOf(8),
    page_sizes=Exact(64),
    attention_arch={AttentionArch.MLA},
)
_NEITHER = Capabilities(
    devices={"xpu", "npu"},
    compute_capability=[ComputeRange((8, 0), (9, 0)), ComputeRange((10, 0))],
    dtypes={"float16"},
    kv_cache_dtypes={"auto"},
    head_sizes=MultipleOf(96),
    page_sizes=OneOf({1, 16}),
    attention_arch={AttentionArch.MHA, AttentionArch.SPARSE},
)


def _unsupported(fact: str, actual: str, needed: str) -> Reason:
    return Reason(
        code=f"{fact.replace('_', '-')}-unsupported",
        fact=fact,
        actual=actual,
        needed=needed,
        remedy=f"Use another backend, or {fact} {needed}.",
    )


def _not_checked(fact: str, actual: str) -> Reason:
    return Reason(
        code=f"{fact.replace('_', '-')}-not-checked",
        fact=fact,
        actual=actual,
        needed=None,
        remedy="Ask the backend's author to declare it.",
    )


@pytest.mark.parametrize(
    ("capabilities", "facts", "reasons"),
    [
        pytest.param(_FITS, _FACTS, [], id="fits"),
        pytest.param(
            _NEITHER,
            _FACTS,
            [
                _unsupported("device", "cuda", "npu, xpu"),
                _unsupported("dtype", "bfloat16", "float16"),
                _unsupported("kv_cache_dtype", "fp8_e5m2", "auto"),
                _unsupported("head_size", "128", "multiples of 96"),
                _unsupported("page_size", "64", "one of 1, 16"),
                _unsupported("compute_capability", "9.0", ">= 8.0 and < 9.0 or >= 10.0"),
                _unsupported("attention_arch", "mla", "mha, sparse"),
            ],
            id="fits in nothing",
        ),
        pytest.param(
            Capabilities(),
            _FACTS,
            [
                _not_checked("device", "cuda"),
                _not_checked("dtype", "bfloat16"),
                _not_checked("kv_cache_dtype", "fp8_e5m2"),
                _not_checked("head_size", "128"),
                _not_checked("page_size", "64"),
                _not_checked("compute_capability", "9.0"),
                _not_checked("attention_arch", "mla"),
            ],
            id="says nothing",
        ),
        pytest.param(_NEITHER, Facts(), [], id="nothing is known"),
    ],
)
def test_unsupported_reasons_are_all_told(
    capabilities: Capabilities, facts: Facts, reasons: list[Reason]
) -> None:
    """Every reason is listed: what is, what is needed, what to do."""
    supported = dict(capabilities)

    actual = unsupported_reasons(supported, facts)

    assert list(actual) == reasons


def test_checked_capabilities_and_facts_are_real() -> None:
    """What is checked is a capability, against a fact that there is."""
    unknown = (
        CHECKED_AGAINST.keys() - CAPABILITIES,
        set(CHECKED_AGAINST.values()) - set(dict(Facts())),
    )

    assert unknown == (set(), set())


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        pytest.param(
            _unsupported("page_size", "64", "one of 1, 16"),
            "backend 'fa3' takes page_size one of 1, 16; here it is 64.",
            id="unsupported",
        ),
        pytest.param(
            _not_checked("device", "cuda"),
            "backend 'fa3' does not say which device it takes; here it is cuda.",
            id="not checked",
        ),
    ],
)
def test_reason_is_said_of_a_backend(reason: Reason, text: str) -> None:
    """A reason is a sentence about the backend it is said of."""
    said = reason.of("fa3")

    assert said == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(True, "yes", id="granted"),
        pytest.param(False, "no", id="not granted"),
        pytest.param(4, "4", id="a limit"),
        pytest.param(NO_LIMIT, "no limit", id="no limit"),
        pytest.param(HostSeqLens.UPPER_BOUND, "upper_bound", id="a level"),
        pytest.param((9, 0), "9.0", id="a version"),
        pytest.param(
            (ComputeRange((8, 0)), ComputeRange((9, 0))), ">= 8.0 or >= 9.0", id="windows"
        ),
        pytest.param(frozenset({Role.TARGET, Role.DRAFT}), "draft, target", id="a set, sorted"),
        pytest.param(frozenset(), "none", id="an empty set"),
        pytest.param(OneOf({64, 8}), "one of 8, 64", id="sizes"),
        pytest.param(ANY, "any", id="any"),
        pytest.param("cuda", "cuda", id="a word"),
    ],
)
def test_text_of_writes_values_as_people_read_them(value: object, text: str) -> None:
    """A value has one way of being written, in reports and fingerprints alike."""
    written = text_of(value)

    assert written == text
