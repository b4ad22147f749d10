from __future__ import annotations

import pickle
import warnings
from typing import Annotated

import pytest
from pydantic import StrictBool

from backend_caps import ANY, UNDECLARED, ComputeRange, Exact, MultipleOf, OneOf, Role
from backend_caps.capability.kind import Scope, Undeclared, both, support
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    AttentionArch,
    AttentionType,
    BatchKind,
    Capabilities,
    GraphMetadata,
    HostSeqLens,
    KVLayout,
    SharedReadsEnd,
)
from tests.unit.building import faults_of

_NONE, _BOUND, _EXACT = HostSeqLens.NONE, HostSeqLens.UPPER_BOUND, HostSeqLens.EXACT
_NO_BOOL = "Input should be a valid boolean"
_NO_LEVEL = "Input should be 'none', 'upper_bound' or 'exact'"
_NEGATIVE = "Input should be greater than or equal to 0"
_TOO_SMALL = "Input should be greater than or equal to 1"
_EMPTY = "Frozenset should have at least 1 item after validation, not 0"
_SIXTEEN = "Input should be Exact(16), or MultipleOf(16) for all its multiples"
_ANY_SIZES = "Input should be Exact(n), MultipleOf(n), OneOf({n, m}) or ANY"
_WINDOWS = "Input should be windows of versions"
_NINE = "[ComputeRange((9, 0))]"
_AMPERE = ComputeRange((8, 0), (9, 0))

EVERYTHING = Capabilities(
    host_seq_lens=_BOUND,
    graph_replay={BatchKind.UNIFORM_BATCH, BatchKind.SINGLE_TOKEN_DECODE},
    graph_metadata=GraphMetadata.DEVICE,
    sync_free_prepare=True,
    shared_reads_end=SharedReadsEnd.IN_REPLAY,
    two_batch_overlap=False,
    deterministic=True,
    batch_invariant=False,
    max_context_len_known=True,
    roles={Role.TARGET, Role.DRAFT},
    max_speculative_topk=8,
    page_sizes=OneOf({64, 16}),
    devices={"xpu", "cuda"},
    dtypes={"float16", "bfloat16"},
    kv_cache_dtypes=ANY,
    head_sizes=MultipleOf(8),
    compute_capability=[_AMPERE, ComputeRange((10, 0))],
    attention_arch={AttentionArch.MLA, AttentionArch.MHA},
    attention_types={AttentionType.DECODER, AttentionType.ENCODER_ONLY},
    sliding_window=True,
    attention_sinks=False,
    logit_soft_cap=True,
    non_causal=False,
    multimodal_prefix=False,
    per_head_kv_scales=True,
    decode_context_parallel=True,
    prefill_context_parallel=False,
    kv_layouts={KVLayout.NHD, KVLayout.HND},
    kernel_block_sizes=OneOf({16, 32}),
    auto_priority=70,
)
"""One value of each capability."""


@pytest.mark.parametrize(
    ("said", "level", "flag"),
    [
        ({"needs_cpu_seq_lens": True}, _EXACT, True),
        ({"needs_cpu_seq_lens": False}, _NONE, False),
        ({"host_seq_lens": _EXACT}, _EXACT, True),
        ({"host_seq_lens": _BOUND}, _BOUND, False),
        ({"host_seq_lens": _NONE}, _NONE, False),
        ({"host_seq_lens": "exact"}, _EXACT, True),
        ({"host_seq_lens": _BOUND, "needs_cpu_seq_lens": False}, _BOUND, False),
        ({"host_seq_lens": UNDECLARED, "needs_cpu_seq_lens": True}, _EXACT, True),
        ({"host_seq_lens": "none", "needs_cpu_seq_lens": "undeclared"}, _NONE, False),
        ({}, UNDECLARED, UNDECLARED),
    ],
)
def test_spellings_fill_each_other(said: dict[str, object], level: object, flag: object) -> None:
    """`needs_cpu_seq_lens` and `host_seq_lens` are one field, whichever is written."""
    capabilities = Capabilities.model_validate(said)

    assert (capabilities.host_seq_lens, capabilities.needs_cpu_seq_lens) == (level, flag)


class _Later(Capabilities):
    """The capabilities of a later version: a field has another name, and one is deprecated."""

    local_window: Annotated[
        StrictBool | Undeclared,
        support(
            worst=False, best=True, join=both, scope=Scope.USE, since="0.2.0", former_names=("swa",)
        ),
    ] = UNDECLARED
    chunked_window: Annotated[
        StrictBool | Undeclared,
        support(worst=False, best=True, join=both, scope=Scope.USE, replaced_by="local_window"),
    ] = UNDECLARED


@pytest.mark.parametrize(
    ("said", "stated", "instead"),
    [
        pytest.param({"swa": True}, {"local_window": True}, "swa", id="former name"),
        pytest.param(
            {"chunked_window": True}, {"chunked_window": True}, "chunked_window", id="deprecated"
        ),
    ],
)
def test_outdated_name_is_read_with_a_warning(
    said: dict[str, object], stated: dict[str, object], instead: str
) -> None:
    """A former name counts as the present one, and the warning says what to state instead."""
    with pytest.warns(DeprecationWarning, match="state") as told:
        capabilities = _Later.model_validate(said)

    assert capabilities.stated() == stated
    assert [str(each.message) for each in told] == [
        f"capability '{instead}' is deprecated: state 'local_window' in its place."
    ]


def test_outdated_name_that_states_nothing_is_no_warning() -> None:
    """A document that lists every name, most as undeclared, is read without a warning."""
    document = {"swa": "undeclared", "chunked_window": "undeclared", "two_batch_overlap": True}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capabilities = _Later.model_validate(document)

    assert capabilities.stated() == {"two_batch_overlap": True}


def test_former_name_beside_the_present_one_is_refused() -> None:
    """Two statements of one capability are an error that names the present name."""
    faults = faults_of(lambda: _Later.model_validate({"swa": True, "local_window": True}))

    text = "Value error, swa is the former name of local_window. State local_window alone."
    assert faults == [("", text)]


def test_copy_by_the_former_name_replaces_the_value() -> None:
    """An update by a former name replaces what the present one states."""
    stated = _Later(local_window=True)

    with pytest.warns(DeprecationWarning, match="'swa'"):
        copied = stated.model_copy(update={"swa": False})

    assert copied.stated() == {"local_window": False}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("two_batch_overlap", 1, _NO_BOOL),
        ("deterministic", "yes", _NO_BOOL),
        ("sync_free_prepare", None, _NO_BOOL),
        ("max_speculative_topk", True, "Input should be a valid integer"),
        ("max_speculative_topk", "8", "Input should be a valid integer"),
        ("max_speculative_topk", 0, _TOO_SMALL),
        ("host_seq_lens", True, _NO_LEVEL),
        ("host_seq_lens", "EXACT", _NO_LEVEL),
        ("host_seq_lens", GraphMetadata.HOST, _NO_LEVEL),
        ("devices", "cuda", "Input should be a set: {'cuda'}"),
        ("devices", [0], "Input should be a valid string"),
        ("roles", Role.TARGET, "Input should be a set: {Role.TARGET}"),
        ("roles", set(), _EMPTY),
        ("needs_cpu_seq_len", True, "Extra inputs are not permitted"),
        ("page_sizes", {16}, _SIXTEEN),
        ("page_sizes", 16, _SIXTEEN),
        ("page_sizes", [64, 16], "Input should be OneOf({16, 64})"),
        ("page_sizes", {16, "k"}, _ANY_SIZES),
        ("page_sizes", set(), _ANY_SIZES),
        ("page_sizes", True, _ANY_SIZES),
        ("page_sizes", "16", _ANY_SIZES),
        ("page_sizes", Exact(0), _TOO_SMALL),
        ("page_sizes", Exact(exact=True), "Input should be a valid integer"),
        ("page_sizes", {"exact": "64"}, "Input should be a valid integer"),
        ("page_sizes", MultipleOf(-8), _TOO_SMALL),
        ("page_sizes", OneOf(frozenset()), _EMPTY),
        ("page_sizes", {"exact": 64, "unit": "k"}, "Unexpected keyword argument"),
        ("compute_capability", (9, 0), f"{_WINDOWS}: {_NINE}"),
        ("compute_capability", ComputeRange((9, 0)), f"{_WINDOWS}: {_NINE}"),
        ("compute_capability", _AMPERE, f"{_WINDOWS}: [ComputeRange((8, 0), (9, 0))]"),
        ("compute_capability", [(9, 0)], f"{_WINDOWS}, such as {_NINE}"),
        ("compute_capability", "9.0", f"{_WINDOWS}, such as {_NINE}"),
        ("compute_capability", [ComputeRange((9, -1))], _NEGATIVE),
    ],
)
def test_capability_refuses_what_it_cannot_be(name: str, value: object, text: str) -> None:
    """A value of another type or shape is an error that says what to write, by hand or in JSON."""
    said = faults_of(lambda: Capabilities.model_validate({name: value}))
    copied = faults_of(lambda: Capabilities().model_copy(update={name: value}))

    assert text in [each for _, each in said]
    assert copied == said


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gpu", "cuda"), ("GPU:1", "cuda"), ("nvidia", "cuda"), ("rocm", "cuda"), ("metal", "mps")],
)
def test_device_by_another_name_is_refused(name: str, meant: str) -> None:
    """No server has a device of that name, so the backend would never be chosen."""
    faults = faults_of(lambda: Capabilities(devices={"cpu", name}))

    text = f"Input should be a device type as torch calls it (did you mean {meant!r}?)"
    assert text in [each for _, each in faults]


def test_capabilities_are_stored_so_that_nobody_changes_them() -> None:
    """Sets and lists that the author may change later are stored frozen; so is the whole."""
    batches = frozenset({BatchKind.UNIFORM_BATCH, BatchKind.SINGLE_TOKEN_DECODE})
    windows = (_AMPERE, ComputeRange((10, 0)))

    faults = faults_of(lambda: setattr(EVERYTHING, "two_batch_overlap", True))

    assert faults == [("two_batch_overlap", "Instance is frozen")]
    assert type(EVERYTHING.devices) is frozenset
    assert (EVERYTHING.graph_replay, EVERYTHING.compute_capability) == (batches, windows)


@pytest.mark.parametrize(
    ("level", "flag", "means"),
    [(_NONE, True, False), (_BOUND, True, False), (_EXACT, False, True), ("none", True, False)],
)
def test_spellings_that_contradict_each_other_are_refused(
    level: HostSeqLens | str, flag: bool, means: bool
) -> None:
    """A contradiction, in JSON's words too, is an error that says what each means."""
    faults = faults_of(
        lambda: Capabilities.model_validate({"host_seq_lens": level, "needs_cpu_seq_lens": flag})
    )

    name = level.name if isinstance(level, HostSeqLens) else level.upper()
    text = (
        f"Value error, needs_cpu_seq_lens={flag} contradicts host_seq_lens={name}; "
        f"{name} means needs_cpu_seq_lens={means}. State one of the two."
    )
    assert faults == [("", text)]


@pytest.mark.parametrize(
    ("said", "device"),
    [("CUDA", "cuda"), ("cuda:0", "cuda"), ("npu", "npu"), ("sim", "sim"), ("my_chip", "my_chip")],
)
def test_device_types_are_open(said: str, device: str) -> None:
    """Backends of torch bring types of their own; a number says which device, not its type."""
    assert Capabilities(devices={said}).devices == frozenset({device})


def test_capabilities_are_written_in_a_stable_order() -> None:
    """Sets are written sorted, scales and states by their values."""
    written = EVERYTHING.model_dump(mode="json")

    expected = {
        "host_seq_lens": "upper_bound",
        "needs_cpu_seq_lens": False,
        "graph_replay": ["single_token_decode", "uniform_batch"],
        "graph_metadata": "device",
        "sync_free_prepare": True,
        "shared_reads_end": "in_replay",
        "two_batch_overlap": False,
        "deterministic": True,
        "batch_invariant": False,
        "max_context_len_known": True,
        "roles": ["draft", "target"],
        "max_speculative_topk": 8,
        "page_sizes": {"one_of": [16, 64]},
        "devices": ["cuda", "xpu"],
        "dtypes": ["bfloat16", "float16"],
        "kv_cache_dtypes": "any",
        "head_sizes": {"multiple_of": 8},
        "compute_capability": [
            {"at_least": [8, 0], "below": [9, 0]},
            {"at_least": [10, 0], "below": None},
        ],
        "attention_arch": ["mha", "mla"],
        "auto_priority": 70,
    }
    assert {name: written[name] for name in expected} == expected


def test_capabilities_survive_json_and_pickling() -> None:
    """Capabilities cross into another process and are the same there, stated or not."""
    read = Capabilities.model_validate_json(EVERYTHING.model_dump_json())
    unpickled = pickle.loads(pickle.dumps(EVERYTHING))  # noqa: S301 - our own bytes

    assert (read, unpickled) == (EVERYTHING, EVERYTHING)
    assert list(EVERYTHING.stated()) == list(CAPABILITIES)
    assert set(Capabilities().model_dump(mode="json").values()) == {"undeclared"}


def test_stated_lists_what_the_author_said_in_the_tables_order() -> None:
    """Only what was said is listed, each capability by one name."""
    stated = list(Capabilities(page_sizes=ANY, needs_cpu_seq_lens=False).stated().items())

    assert stated == [("host_seq_lens", HostSeqLens.NONE), ("page_sizes", ANY)]


@pytest.mark.parametrize(
    ("update", "level", "flag"),
    [
        pytest.param({"needs_cpu_seq_lens": True}, _EXACT, True, id="by the second spelling"),
        pytest.param({"host_seq_lens": _BOUND}, _BOUND, False, id="by the first spelling"),
        pytest.param({"two_batch_overlap": True}, _NONE, False, id="another capability"),
        pytest.param(None, _NONE, False, id="nothing"),
    ],
)
def test_copy_replaces_both_spellings(
    update: dict[str, object] | None, level: HostSeqLens, flag: bool
) -> None:
    """A copy that changes one spelling changes the other with it, and keeps the rest."""
    copy = Capabilities(needs_cpu_seq_lens=False, devices={"cuda"}).model_copy(update=update)

    assert (copy.host_seq_lens, copy.needs_cpu_seq_lens) == (level, flag)
    assert copy.devices == {"cuda"}
