from __future__ import annotations

import pickle

import pytest

from backend_caps.capability.kind import Role
from backend_caps.capability.scale import ANY, UNDECLARED
from backend_caps.capability.sets import ComputeRange
from backend_caps.capability.sizes import Exact, MultipleOf, OneOf
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    AttentionArch,
    BatchKind,
    Capabilities,
    GraphMetadata,
    HostSeqLens,
    SharedReadsEnd,
)
from tests.unit.building import faults_of

_NONE, _BOUND, _EXACT = HostSeqLens.NONE, HostSeqLens.UPPER_BOUND, HostSeqLens.EXACT
_NO_BOOL = "Input should be a valid boolean"
_NOT_UNDECLARED = "Input should be 'undeclared'"

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
    compute_capability=[ComputeRange((8, 0), (9, 0)), ComputeRange((10, 0))],
    attention_arch={AttentionArch.MLA, AttentionArch.MHA},
    auto_priority=70,
)
"""One value of each capability."""


@pytest.mark.parametrize(
    ("said", "level", "flag"),
    [
        pytest.param({"needs_cpu_seq_lens": True}, _EXACT, True, id="True is EXACT"),
        pytest.param({"needs_cpu_seq_lens": False}, _NONE, False, id="False is NONE"),
        pytest.param({"host_seq_lens": _EXACT}, _EXACT, True, id="EXACT is True"),
        pytest.param({"host_seq_lens": _BOUND}, _BOUND, False, id="a bound is False"),
        pytest.param({"host_seq_lens": _NONE}, _NONE, False, id="NONE is False"),
        pytest.param({"host_seq_lens": "exact"}, _EXACT, True, id="by its value, as in JSON"),
        pytest.param(
            {"host_seq_lens": _BOUND, "needs_cpu_seq_lens": False}, _BOUND, False, id="both, alike"
        ),
        pytest.param(
            {"host_seq_lens": UNDECLARED, "needs_cpu_seq_lens": True},
            _EXACT,
            True,
            id="one and UNDECLARED",
        ),
        pytest.param(
            {"host_seq_lens": "none", "needs_cpu_seq_lens": "undeclared"},
            _NONE,
            False,
            id="one and undeclared, as in JSON",
        ),
        pytest.param({}, UNDECLARED, UNDECLARED, id="nothing said"),
    ],
)
def test_spellings_fill_each_other(said: dict[str, object], level: object, flag: object) -> None:
    """`needs_cpu_seq_lens` and `host_seq_lens` are one field, whichever is written."""
    capabilities = Capabilities.model_validate(said)

    both = (capabilities.host_seq_lens, capabilities.needs_cpu_seq_lens)

    assert both == (level, flag)


@pytest.mark.parametrize(
    ("level", "flag", "means"),
    [
        pytest.param(_NONE, True, False, id="NONE and True"),
        pytest.param(_BOUND, True, False, id="UPPER_BOUND and True"),
        pytest.param(_EXACT, False, True, id="EXACT and False"),
    ],
)
def test_spellings_that_contradict_each_other_are_refused(
    level: HostSeqLens, flag: bool, means: bool
) -> None:
    """A contradiction between the two spellings is an error that says what each means."""
    name = level.name

    faults = faults_of(lambda: Capabilities(host_seq_lens=level, needs_cpu_seq_lens=flag))

    text = (
        f"Value error, needs_cpu_seq_lens={flag} contradicts host_seq_lens={name}; "
        f"{name} means needs_cpu_seq_lens={means}. State one of the two."
    )
    assert faults == [("", text)]


def test_spellings_that_contradict_each_other_in_json_are_refused() -> None:
    """A contradiction is found in JSON too, where a level is a word."""
    written = '{"host_seq_lens": "upper_bound", "needs_cpu_seq_lens": true}'

    faults = faults_of(lambda: Capabilities.model_validate_json(written))

    text = (
        "Value error, needs_cpu_seq_lens=True contradicts host_seq_lens=UPPER_BOUND; "
        "UPPER_BOUND means needs_cpu_seq_lens=False. State one of the two."
    )
    assert faults == [("", text)]


@pytest.mark.parametrize("name", list(Capabilities.model_fields))
def test_capability_left_out_is_undeclared(name: str) -> None:
    """What the author leaves out is `UNDECLARED`, not a value."""
    capabilities = Capabilities()

    value = getattr(capabilities, name)

    assert value is UNDECLARED


@pytest.mark.parametrize("name", list(Capabilities.model_fields))
def test_capability_of_none_is_refused(name: str) -> None:
    """`None` is never a silent opt-out."""
    said = {name: None}

    faults = faults_of(lambda: Capabilities.model_validate(said))

    assert _NOT_UNDECLARED in [text for _, text in faults]


@pytest.mark.parametrize(
    "name",
    [
        "needs_cpu_seq_lens",
        "sync_free_prepare",
        "two_batch_overlap",
        "deterministic",
        "batch_invariant",
        "max_context_len_known",
    ],
)
@pytest.mark.parametrize("value", [1, 0, "yes", "true", 1.0])
def test_bool_capability_is_strict(name: str, value: object) -> None:
    """A bool is `True` or `False`, never a number or a word."""
    said = {name: value}

    faults = faults_of(lambda: Capabilities.model_validate(said))

    assert faults == [
        (f"{name}.bool", _NO_BOOL),
        (f"{name}.enum[Undeclared]", _NOT_UNDECLARED),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(True, "Input should be a valid integer", id="a bool"),
        pytest.param("8", "Input should be a valid integer", id="a word"),
        pytest.param(8.0, "Input should be a valid integer", id="a float"),
        pytest.param(0, "Input should be greater than or equal to 1", id="too small"),
    ],
)
def test_int_capability_is_strict(value: object, text: str) -> None:
    """A limit is a whole number from 1 on."""
    faults = faults_of(lambda: Capabilities(max_speculative_topk=value))

    assert faults == [
        ("max_speculative_topk.constrained-int", text),
        ("max_speculative_topk.enum[Undeclared]", _NOT_UNDECLARED),
    ]


@pytest.mark.parametrize("value", [True, False, 2, "EXACT", GraphMetadata.HOST])
def test_level_of_another_type_is_refused(value: object) -> None:
    """A level is a member of its own scale; `True` is none."""
    faults = faults_of(lambda: Capabilities(host_seq_lens=value))

    assert faults == [
        ("host_seq_lens.enum[HostSeqLens]", "Input should be 'none', 'upper_bound' or 'exact'"),
        ("host_seq_lens.enum[Undeclared]", _NOT_UNDECLARED),
    ]


def test_set_capability_takes_no_single_word() -> None:
    """A string is no set of its letters."""
    faults = faults_of(lambda: Capabilities(devices="cuda"))

    assert faults == [("devices", "Input should be a set: {'cuda'}")]


def test_set_capability_takes_no_single_member() -> None:
    """One member is no set of itself."""
    faults = faults_of(lambda: Capabilities(roles=Role.TARGET))

    assert faults == [("roles", "Input should be a set: {Role.TARGET}")]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        pytest.param("gpu", "cuda", id="what it is"),
        pytest.param("GPU:1", "cuda", id="in capitals, with a number"),
        pytest.param("nvidia", "cuda", id="who made it"),
        pytest.param("rocm", "cuda", id="its software"),
        pytest.param("metal", "mps", id="another maker's software"),
    ],
)
def test_device_by_another_name_is_refused(name: str, meant: str) -> None:
    """No server has a device of that name, so the backend would never be chosen."""
    faults = faults_of(lambda: Capabilities(devices={"cpu", name}))

    text = f"Input should be a device type as torch calls it (did you mean {meant!r}?)"
    assert text in [each for _, each in faults]


@pytest.mark.parametrize(
    ("said", "device"),
    [
        pytest.param("CUDA", "cuda", id="in capitals"),
        pytest.param("cuda:0", "cuda", id="with a number"),
        pytest.param("npu", "npu", id="of an extension"),
        pytest.param("sim", "sim", id="simulated"),
        pytest.param("my_chip", "my_chip", id="of nobody known"),
    ],
)
def test_device_types_are_open(said: str, device: str) -> None:
    """Backends of torch bring types of their own; a number says which device, not its type."""
    devices = Capabilities(devices={said}).devices

    assert devices == frozenset({device})


_ANY_SIZES = "Exact(n), MultipleOf(n), OneOf({n, m}) or ANY"


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        pytest.param({16}, "Exact(16), or MultipleOf(16) for all its multiples", id="a set of one"),
        pytest.param(16, "Exact(16), or MultipleOf(16) for all its multiples", id="a number"),
        pytest.param([64, 16], "OneOf({16, 64})", id="a list"),
        pytest.param({16, "k"}, _ANY_SIZES, id="a set of anything"),
        pytest.param(set(), _ANY_SIZES, id="a set of nothing"),
        pytest.param(True, _ANY_SIZES, id="a bool"),
        pytest.param("16", _ANY_SIZES, id="a word"),
    ],
)
def test_sizes_in_another_shape_are_refused(value: object, meant: str) -> None:
    """The error says what to write in their place."""
    faults = faults_of(lambda: Capabilities.model_validate({"page_sizes": value}))

    assert faults == [("page_sizes", f"Input should be {meant}")]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        pytest.param((9, 0), ": [ComputeRange((9, 0))]", id="a version"),
        pytest.param(ComputeRange((9, 0)), ": [ComputeRange((9, 0))]", id="a window"),
        pytest.param(
            ComputeRange((8, 0), (9, 0)),
            ": [ComputeRange((8, 0), (9, 0))]",
            id="a window with an end",
        ),
        pytest.param([(9, 0)], ", such as [ComputeRange((9, 0))]", id="a list of versions"),
        pytest.param("9.0", ", such as [ComputeRange((9, 0))]", id="a word"),
    ],
)
def test_compute_capability_in_another_shape_is_refused(value: object, meant: str) -> None:
    """The error says what to write in its place."""
    faults = faults_of(lambda: Capabilities.model_validate({"compute_capability": value}))

    assert faults == [("compute_capability", f"Input should be windows of versions{meant}")]


def test_roles_of_nobody_are_refused() -> None:
    """A backend that takes no role could never be used."""
    faults = faults_of(lambda: Capabilities(roles=set()))

    assert faults[0][1] == "Frozenset should have at least 1 item after validation, not 0"


def test_unknown_capability_is_refused() -> None:
    """A name that is no capability is an error that names it."""
    faults = faults_of(lambda: Capabilities.model_validate({"needs_cpu_seq_len": True}))

    assert faults == [("needs_cpu_seq_len", "Extra inputs are not permitted")]


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        pytest.param(Exact(0), "Input should be greater than or equal to 1", id="zero"),
        pytest.param(Exact(exact=True), "Input should be a valid integer", id="a bool"),
        pytest.param({"exact": "64"}, "Input should be a valid integer", id="a word"),
        pytest.param(
            MultipleOf(-8), "Input should be greater than or equal to 1", id="negative multiple"
        ),
        pytest.param(
            OneOf(frozenset()),
            "Frozenset should have at least 1 item after validation, not 0",
            id="one of none",
        ),
        pytest.param({"exact": 64, "unit": "k"}, "Unexpected keyword argument", id="another key"),
    ],
)
def test_sizes_are_checked_however_they_were_built(sizes: object, text: str) -> None:
    """Sizes that were made by hand are validated like those from JSON."""
    faults = faults_of(lambda: Capabilities(page_sizes=sizes))

    assert text in [each for _, each in faults]


def test_compute_capability_is_checked_however_it_was_built() -> None:
    """A window that was made by hand is validated like one from JSON."""
    window = ComputeRange((9, -1))

    faults = faults_of(lambda: Capabilities(compute_capability=[window]))

    assert "Input should be greater than or equal to 0" in [text for _, text in faults]


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        pytest.param("devices", frozenset({"cuda", "xpu"}), id="words"),
        pytest.param(
            "graph_replay",
            frozenset({BatchKind.UNIFORM_BATCH, BatchKind.SINGLE_TOKEN_DECODE}),
            id="members",
        ),
    ],
)
def test_set_is_stored_frozen(name: str, stored: frozenset[object]) -> None:
    """A set that the author may change later is stored as one that nobody can."""
    value = getattr(EVERYTHING, name)

    assert (type(value), value) == (frozenset, stored)


def test_sequence_is_stored_as_a_tuple() -> None:
    """A list that the author may change later is stored as a tuple."""
    windows = EVERYTHING.compute_capability

    assert windows == (ComputeRange((8, 0), (9, 0)), ComputeRange((10, 0)))


def test_capabilities_cannot_be_changed() -> None:
    """What was declared stays as it is."""
    faults = faults_of(lambda: setattr(EVERYTHING, "two_batch_overlap", True))

    assert faults == [("two_batch_overlap", "Instance is frozen")]


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


def test_undeclared_capabilities_are_written_as_such() -> None:
    """What nobody stated is written, and reads as what nobody stated."""
    written = Capabilities().model_dump(mode="json")

    assert set(written.values()) == {"undeclared"}


def test_capabilities_survive_json() -> None:
    """Capabilities cross a boundary as JSON and are the same behind it."""
    carried = Capabilities.model_validate_json(EVERYTHING.model_dump_json())

    assert carried == EVERYTHING


def test_capabilities_survive_pickling() -> None:
    """Capabilities cross into another process and are the same there."""
    carried = pickle.loads(pickle.dumps(EVERYTHING))  # noqa: S301 - our own bytes

    assert carried == EVERYTHING


def test_stated_lists_what_the_author_said_in_the_tables_order() -> None:
    """Only what was said is listed, each capability by one name."""
    capabilities = Capabilities(page_sizes=ANY, needs_cpu_seq_lens=False)

    stated = list(capabilities.stated().items())

    assert stated == [("host_seq_lens", HostSeqLens.NONE), ("page_sizes", ANY)]


def test_everything_states_every_capability() -> None:
    """The example of these tests leaves no capability out."""
    stated = EVERYTHING.stated()

    assert list(stated) == list(CAPABILITIES)


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
    """A copy that changes one spelling changes the other with it."""
    base = Capabilities(needs_cpu_seq_lens=False)

    copy = base.model_copy(update=update)

    assert (copy.host_seq_lens, copy.needs_cpu_seq_lens) == (level, flag)


def test_copy_keeps_the_rest() -> None:
    """A copy differs from the original in what was updated, and in nothing else."""
    base = Capabilities(max_speculative_topk=4, devices={"cuda"})

    copy = base.model_copy(update={"max_speculative_topk": 8})

    assert copy == Capabilities(max_speculative_topk=8, devices={"cuda"})


def test_copy_validates_what_it_is_given() -> None:
    """An update is checked like a declaration; pydantic's own copy would let it pass."""
    base = Capabilities()

    faults = faults_of(lambda: base.model_copy(update={"two_batch_overlap": 1}))

    assert faults == [
        ("two_batch_overlap.bool", _NO_BOOL),
        ("two_batch_overlap.enum[Undeclared]", _NOT_UNDECLARED),
    ]


def test_capabilities_are_read_from_a_mapping_alone() -> None:
    """What is no mapping is refused by its type."""
    faults = faults_of(lambda: Capabilities.model_validate([("two_batch_overlap", True)]))

    assert faults == [
        ("", "Input should be a valid dictionary or instance of Capabilities"),
    ]


@pytest.mark.parametrize("wrong", [0, ("cuda", 0)], ids=["a number", "a pair"])
def test_device_that_is_no_name_is_refused(wrong: object) -> None:
    """What is no text is pydantic's to refuse, and not taken for a name."""
    faults = faults_of(lambda: Capabilities.model_validate({"devices": [wrong]}))

    assert "Input should be a valid string" in [each for _, each in faults]
