from __future__ import annotations

import pytest

from backend_caps.capability.facts import Facts, Reason, text_of, unsupported_reasons
from backend_caps.capability.kind import ANY, Role
from backend_caps.capability.sets import ComputeRange, Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import NO_LIMIT, AttentionArch, Capabilities, HostSeqLens

_FACTS = Facts(
    device="cuda",
    compute_capability=(9, 0),
    dtype="bfloat16",
    kv_cache_dtype="fp8_e5m2",
    head_size=128,
    page_size=64,
    attention_arch=AttentionArch.MLA,
)
_ACTUAL = {name: text_of(value) for name, value in _FACTS.known().items()}
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


_NEEDED = {
    "device": "npu, xpu",
    "dtype": "float16",
    "kv_cache_dtype": "auto",
    "head_size": "multiples of 96",
    "page_size": "one of 1, 16",
    "compute_capability": ">= 8.0 and < 9.0 or >= 10.0",
    "attention_arch": "mha, sparse",
}


@pytest.mark.parametrize(
    ("capabilities", "facts", "needed"),
    [
        pytest.param(_FITS, _FACTS, {}, id="fits"),
        pytest.param(_NEITHER, _FACTS, _NEEDED, id="fits in nothing"),
        pytest.param(Capabilities(), _FACTS, dict.fromkeys(_NEEDED), id="says nothing"),
        pytest.param(_NEITHER, Facts(), {}, id="nothing is known"),
    ],
)
def test_unsupported_reasons_are_all_told(
    capabilities: Capabilities, facts: Facts, needed: dict[str, str | None]
) -> None:
    """Every reason is listed: what is, and what is needed."""
    reasons = [Reason(fact=fact, actual=_ACTUAL[fact], needed=own) for fact, own in needed.items()]

    assert list(unsupported_reasons(dict(capabilities), facts)) == reasons


def test_reason_is_said_of_a_backend() -> None:
    """A reason is a sentence about the backend it is said of, with what to do about it."""
    taken = Reason(fact="page_size", actual="64", needed="one of 1, 16")
    silent = Reason(fact="page_size", actual="64", needed=None)

    assert [taken.code, taken.of("fa3"), taken.remedy] == [
        "page-size-unsupported",
        "backend 'fa3' takes page_size one of 1, 16; here it is 64.",
        "Use another backend, or page_size one of 1, 16.",
    ]
    assert [silent.code, silent.of("fa3"), silent.remedy] == [
        "page-size-not-checked",
        "backend 'fa3' does not say which page_size it takes; here it is 64.",
        "Ask the backend's author to declare it.",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (False, "no"),
        (4, "4"),
        (NO_LIMIT, "no limit"),
        (HostSeqLens.UPPER_BOUND, "upper_bound"),
        ((9, 0), "9.0"),
        ((ComputeRange((8, 0)), ComputeRange((9, 0))), ">= 8.0 or >= 9.0"),
        (frozenset({Role.TARGET, Role.DRAFT}), "draft, target"),
        (frozenset(), "none"),
        (OneOf({64, 8}), "one of 8, 64"),
        (ANY, "any"),
        ("cuda", "cuda"),
    ],
)
def test_text_of_writes_values_as_people_read_them(value: object, text: str) -> None:
    """A value has one way of being written, in reports and fingerprints alike."""
    assert text_of(value) == text
