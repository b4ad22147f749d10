from __future__ import annotations

import pytest

from backend_caps import (
    AtLeast,
    AttentionArch,
    AttentionType,
    ComputeRange,
    Facts,
    Given,
    KVLayout,
    Phase,
    Role,
)
from backend_caps.capability.facts import Reason, Truth, text_of, unsupported_reasons
from backend_caps.capability.kind import ANY
from backend_caps.capability.sets import Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import NO_LIMIT, Capabilities, HostSeqLens
from tests.unit.building import faults_of

_WINDOWS = "Input should be windows of versions"
_TRUE, _FALSE, _UNKNOWN = Truth.TRUE, Truth.FALSE, Truth.UNKNOWN
_FP8 = Given(kv_cache_dtype={"fp8_e4m3", "fp8_e5m2"})
_WIDE = Given(speculative_eagle_topk=AtLeast(at_least=4))
_PAGES = Given(page_size={1, 16})
_TBO = Given(enable_two_batch_overlap=True)
_NO_TBO = Given(enable_two_batch_overlap=False)
_GPU = Given(compute_capability=[ComputeRange((8, 0), (9, 0)), ComputeRange((10, 0))])
_VERIFY = Given(phase={Phase.VERIFY})
_BOTH = Given(page_size={16}, rocm=True)


@pytest.mark.parametrize(
    ("given", "situation", "truth"),
    [
        pytest.param(_FP8, {"kv_cache_dtype": "fp8_e5m2"}, _TRUE, id="name, among them"),
        pytest.param(_FP8, {"kv_cache_dtype": "bfloat16"}, _FALSE, id="name, another"),
        pytest.param(_FP8, {"kv_cache_dtype": None}, _UNKNOWN, id="name, none"),
        pytest.param(_FP8, {}, _UNKNOWN, id="name, not known"),
        pytest.param(_WIDE, {"speculative_eagle_topk": 4}, _TRUE, id="bound, reached"),
        pytest.param(_WIDE, {"speculative_eagle_topk": 3}, _FALSE, id="bound, below"),
        pytest.param(_WIDE, {"speculative_eagle_topk": "4"}, _FALSE, id="bound, no number"),
        pytest.param(_PAGES, {"page_size": 16}, _TRUE, id="number, among them"),
        pytest.param(_PAGES, {"page_size": 64}, _FALSE, id="number, another"),
        pytest.param(_TBO, {"enable_two_batch_overlap": True}, _TRUE, id="on, is on"),
        pytest.param(_TBO, {"enable_two_batch_overlap": False}, _FALSE, id="on, is off"),
        pytest.param(_NO_TBO, {"enable_two_batch_overlap": False}, _TRUE, id="off, is off"),
        pytest.param(_NO_TBO, {}, _UNKNOWN, id="off, not known"),
        pytest.param(_GPU, {"compute_capability": (8, 9)}, _TRUE, id="first window"),
        pytest.param(_GPU, {"compute_capability": (12, 0)}, _TRUE, id="second window"),
        pytest.param(_GPU, {"compute_capability": (9, 0)}, _FALSE, id="between windows"),
        pytest.param(_VERIFY, {"phase": Phase.VERIFY}, _TRUE, id="phase, this one"),
        pytest.param(_VERIFY, {"phase": Phase.DECODE}, _FALSE, id="phase, another"),
        pytest.param(_BOTH, {"page_size": 16, "rocm": True}, _TRUE, id="two, both hold"),
        pytest.param(_BOTH, {"rocm": True}, _UNKNOWN, id="two, one holds, one is open"),
        pytest.param(_BOTH, {"rocm": False}, _FALSE, id="two, one fails, one is open"),
    ],
)
def test_given_has_three_truth_values(
    given: Given, situation: dict[str, object], truth: Truth
) -> None:
    """A condition holds, or does not, or stays open while what it asks for is not known."""
    assert given.truth(situation) is truth


@pytest.mark.parametrize("said", [{}, {"role": None}, {"tp_size": None, "device": None}])
def test_given_of_nothing_is_refused(said: dict[str, object]) -> None:
    """A condition that asks for nothing would always hold."""
    faults = faults_of(lambda: Given.model_validate(said))

    assert faults == [
        ("", "Value error, Given() states no condition; name at least one flag or fact.")
    ]


@pytest.mark.parametrize(
    ("place", "said", "text"),
    [
        ("kv_cache_dtypes", {"fp8_e5m2"}, "Extra inputs are not permitted"),
        ("enable_two_batch_overlap", 1, "Input should be a valid boolean"),
        ("device", "cuda", "Input should be a set: {'cuda'}"),
        ("phase", Phase.DECODE, "Input should be a set: {Phase.DECODE}"),
        ("page_size", 16, "Input should be {16}, or AtLeast(16)"),
        ("compute_capability", (9, 0), f"{_WINDOWS}: [ComputeRange((9, 0))]"),
        ("role.0", {"scheduler"}, "Input should be 'target', 'draft' or 'draft_extend'"),
        ("dtype", set(), "Frozenset should have at least 1 item after validation, not 0"),
        ("page_size.AtLeast.at_least", {"at_least": "x"}, "Input should be a valid integer"),
    ],
)
def test_given_refuses_what_cannot_be_asked(place: str, said: object, text: str) -> None:
    """A wrong name or type is an error where the condition is written, not where it is read."""
    faults = faults_of(lambda: Given.model_validate({place.partition(".")[0]: said}))

    assert faults[0] == (place, text)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        pytest.param(_FP8, "kv_cache_dtype in fp8_e4m3, fp8_e5m2", id="several names, sorted"),
        pytest.param(_VERIFY, "phase = verify", id="one member"),
        pytest.param(_PAGES, "page_size in 1, 16", id="numbers"),
        pytest.param(_WIDE, "speculative_eagle_topk >= 4", id="a bound"),
        pytest.param(_TBO, "enable_two_batch_overlap on", id="a switch on"),
        pytest.param(_NO_TBO, "enable_two_batch_overlap off", id="a switch off"),
        pytest.param(_GPU, "compute_capability in >= 8.0 and < 9.0 or >= 10.0", id="windows"),
        pytest.param(_BOTH, "page_size = 16 and rocm on", id="two"),
    ],
)
def test_given_is_written_as_people_read_it(given: Given, text: str) -> None:
    """A condition reads as a sentence about flags and facts."""
    assert str(given) == text


def test_given_is_written_as_json_in_a_stable_order() -> None:
    """Sets of names, members and numbers are written sorted, and are the same when read."""
    given = Given(role={Role.TARGET, Role.DRAFT}, page_size={64, 1}, tp_size=AtLeast(at_least=2))

    written = given.model_dump(mode="json", exclude_none=True)

    assert (written["role"], written["page_size"]) == (["draft", "target"], [1, 64])
    assert written["tp_size"] == {"at_least": 2}
    for each in (given, _FP8, _TBO, _NO_TBO, _GPU):
        assert Given.model_validate_json(each.model_dump_json()) == each


def test_facts_list_what_is_known() -> None:
    """A fact that is `None` is not known, and left out."""
    known = {"device": "cuda", "attention_arch": AttentionArch.MLA}

    assert Facts.model_validate(known).known() == known


_NO_DEVICE = "Input should be a device type as torch calls it (did you mean 'cuda'?)"


@pytest.mark.parametrize(
    ("place", "said", "text"),
    [
        ("device", "gpu", _NO_DEVICE),
        ("gpu", "H200", "Extra inputs are not permitted"),
        ("head_size", True, "Input should be a valid integer"),
        ("compute_capability.1", (9,), "Field required"),
    ],
)
def test_facts_refuse_what_they_cannot_be(place: str, said: object, text: str) -> None:
    """A fact of a wrong name or type is an error."""
    faults = faults_of(lambda: Facts.model_validate({place.partition(".")[0]: said}))

    assert faults == [(place, text)]


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


_GPT_OSS = {"attention_sinks": True, "sliding_window": True, "non_causal": False}


@pytest.mark.parametrize(
    ("said", "facts", "needed"),
    [
        pytest.param({}, {"attention_sinks": False}, {}, id="feature that the model has not"),
        pytest.param(
            {"attention_sinks": False, "sliding_window": True},
            _GPT_OSS,
            {"attention_sinks": "no"},
            id="feature that the backend has not",
        ),
        pytest.param(
            {"attention_sinks": True},
            _GPT_OSS,
            {"sliding_window": None},
            id="feature that the backend is silent about",
        ),
        pytest.param({}, {"attention_type": AttentionType.DECODER}, {}, id="decoder, undeclared"),
        pytest.param(
            {},
            {"attention_type": AttentionType.ENCODER_ONLY},
            {"attention_type": None},
            id="encoder, undeclared",
        ),
        pytest.param(
            {"attention_types": {AttentionType.ENCODER_ONLY}},
            {"attention_type": AttentionType.DECODER},
            {"attention_type": "encoder_only"},
            id="decoder, of a backend for encoders",
        ),
        pytest.param(
            {"kv_layouts": {KVLayout.HND}},
            {"kv_layout": KVLayout.NHD},
            {"kv_layout": "HND"},
            id="another layout",
        ),
        pytest.param({"page_sizes": ANY}, {"page_size": 48}, {}, id="no blocks of its own"),
        pytest.param(
            {"page_sizes": ANY, "kernel_block_sizes": OneOf({16, 64})},
            {"page_size": 48},
            {},
            id="page of several blocks",
        ),
        pytest.param(
            {"page_sizes": ANY, "kernel_block_sizes": OneOf({32, 40, 64})},
            {"page_size": 48},
            {"page_size": "multiples of 32 or multiples of 40"},
            id="page that no block divides",
        ),
        pytest.param(
            {"page_sizes": MultipleOf(64), "kernel_block_sizes": Exact(64)},
            {"page_size": 48},
            {"page_size": "multiples of 64"},
            id="one reason for page and block",
        ),
        pytest.param({"kernel_block_sizes": ANY}, {"page_size": 48}, {"page_size": None}, id="any"),
    ],
)
def test_features_and_layouts_are_checked(
    said: dict[str, object], facts: dict[str, object], needed: dict[str, str | None]
) -> None:
    """A feature counts where the model or the server has it; blocks limit the pages further."""
    capabilities = Capabilities.model_validate(said)

    reasons = unsupported_reasons(dict(capabilities), Facts.model_validate(facts))

    assert {each.fact: each.needed for each in reasons} == needed
    assert len(reasons) == len(needed)


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
def test_unsupported_reasons_are_all_reported(
    capabilities: Capabilities, facts: Facts, needed: dict[str, str | None]
) -> None:
    """Every reason is listed: what is, and what is needed."""
    reasons = [Reason(fact=fact, actual=_ACTUAL[fact], needed=own) for fact, own in needed.items()]

    assert list(unsupported_reasons(dict(capabilities), facts)) == reasons


def test_reason_is_said_of_a_backend() -> None:
    """A reason is a sentence about the backend it is said of, with what to do about it."""
    taken = Reason(fact="page_size", actual="64", needed="one of 1, 16")
    silent = Reason(fact="page_size", actual="64", needed=None)
    denied = Reason(fact="attention_sinks", actual="yes", needed="no")
    unsaid = Reason(fact="attention_sinks", actual="yes", needed=None)

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
    assert [denied.code, denied.of("fa3"), denied.remedy] == [
        "attention-sinks-unsupported",
        "backend 'fa3' does not support attention_sinks; here it is yes.",
        "Use another backend, or a model and flags without attention_sinks.",
    ]
    assert [unsaid.code, unsaid.of("fa3")] == [
        "attention-sinks-not-checked",
        "backend 'fa3' does not say whether it supports attention_sinks; here it is yes.",
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
