from __future__ import annotations

import os
import subprocess
import sys
from enum import Enum
from importlib.metadata import version

import pytest
from packaging.version import Version

from backend_caps.capability.kind import (
    ANY,
    DRAFT_TREES,
    EVERY_USE,
    RELAY_LOOP,
    UNDECLARED,
    Counted,
    Polarity,
    Role,
    Scale,
    Scope,
)
from backend_caps.capability.provenance import BY_HAND, Source
from backend_caps.capability.sets import Exact, MultipleOf, OneOf, Unchecked
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    NO_LIMIT,
    SPELLINGS,
    TOP_PRIORITY,
    AttentionType,
    BatchKind,
    Capabilities,
    GraphMetadata,
    HostSeqLens,
    SharedReadsEnd,
)
from backend_caps.capability.vocabulary import SharedReadsEnd as End

_NEED, _SUPPORT = Polarity.NEED, Polarity.SUPPORT
_SERVER, _PHASE, _USE = Scope.SERVER, Scope.PHASE, Scope.USE
_NOTHING: frozenset[object] = frozenset()

_TABLE = [
    ("host_seq_lens", _NEED, HostSeqLens.EXACT, HostSeqLens.NONE, _SERVER, RELAY_LOOP),
    ("graph_replay", _SUPPORT, _NOTHING, frozenset(BatchKind), _PHASE, EVERY_USE),
    ("graph_metadata", _SUPPORT, GraphMetadata.HOST, GraphMetadata.IN_GRAPH, _PHASE, EVERY_USE),
    ("sync_free_prepare", _SUPPORT, False, True, _PHASE, EVERY_USE),
    ("shared_reads_end", _NEED, End.UNKNOWN, End.PRE_REPLAY, _PHASE, EVERY_USE),
    ("two_batch_overlap", _SUPPORT, False, True, _SERVER, EVERY_USE),
    ("deterministic", _SUPPORT, False, True, _SERVER, EVERY_USE),
    ("batch_invariant", _SUPPORT, False, True, _SERVER, EVERY_USE),
    ("max_context_len_known", _SUPPORT, False, True, _USE, EVERY_USE),
    ("roles", _SUPPORT, frozenset({Role.TARGET}), frozenset(Role), _USE, EVERY_USE),
    ("max_speculative_topk", _SUPPORT, 1, NO_LIMIT, _SERVER, DRAFT_TREES),
    ("page_sizes", _SUPPORT, Unchecked(), ANY, _SERVER, EVERY_USE),
    ("devices", _SUPPORT, _NOTHING, ANY, _USE, EVERY_USE),
    ("dtypes", _SUPPORT, _NOTHING, ANY, _USE, EVERY_USE),
    ("kv_cache_dtypes", _SUPPORT, _NOTHING, ANY, _USE, EVERY_USE),
    ("head_sizes", _SUPPORT, Unchecked(), ANY, _USE, EVERY_USE),
    ("compute_capability", _SUPPORT, (), ANY, _USE, EVERY_USE),
    ("attention_arch", _SUPPORT, _NOTHING, ANY, _USE, EVERY_USE),
    (
        "attention_types",
        _SUPPORT,
        frozenset({AttentionType.DECODER}),
        frozenset(AttentionType),
        _USE,
        EVERY_USE,
    ),
    ("sliding_window", _SUPPORT, False, True, _USE, EVERY_USE),
    ("attention_sinks", _SUPPORT, False, True, _USE, EVERY_USE),
    ("logit_soft_cap", _SUPPORT, False, True, _USE, EVERY_USE),
    ("non_causal", _SUPPORT, False, True, _USE, EVERY_USE),
    ("multimodal_prefix", _SUPPORT, False, True, _USE, EVERY_USE),
    ("per_head_kv_scales", _SUPPORT, False, True, _USE, EVERY_USE),
    ("decode_context_parallel", _SUPPORT, False, True, _USE, EVERY_USE),
    ("prefill_context_parallel", _SUPPORT, False, True, _USE, EVERY_USE),
    ("kv_layouts", _SUPPORT, _NOTHING, ANY, _USE, EVERY_USE),
    ("kernel_block_sizes", _SUPPORT, Unchecked(), ANY, _USE, EVERY_USE),
    ("auto_priority", _SUPPORT, 0, TOP_PRIORITY, _USE, EVERY_USE),
]

_MIXED, _SINGLE, _UNIFORM = (
    frozenset({kind})
    for kind in (BatchKind.MIXED_BATCH, BatchKind.SINGLE_TOKEN_DECODE, BatchKind.UNIFORM_BATCH)
)
_CUDA = frozenset({"cuda"})
_DECODER = frozenset({AttentionType.DECODER})
_CROSS = frozenset({AttentionType.ENCODER_DECODER})
_JOINS = [
    ("host_seq_lens", HostSeqLens.UPPER_BOUND, HostSeqLens.NONE, HostSeqLens.UPPER_BOUND),
    ("graph_replay", _MIXED | _UNIFORM, _UNIFORM | _SINGLE, _UNIFORM),
    ("graph_metadata", GraphMetadata.IN_GRAPH, GraphMetadata.DEVICE, GraphMetadata.DEVICE),
    ("sync_free_prepare", True, False, False),
    ("shared_reads_end", End.IN_REPLAY, End.POST_REPLAY, End.POST_REPLAY),
    ("two_batch_overlap", True, True, True),
    ("deterministic", False, True, False),
    ("batch_invariant", True, False, False),
    ("max_speculative_topk", 4, 8, 4),
    ("devices", ANY, _CUDA, _CUDA),
    ("dtypes", _CUDA, ANY, _CUDA),
    ("page_sizes", MultipleOf(16), Exact(64), Exact(64)),
    ("sliding_window", True, False, False),
    ("attention_types", _DECODER | _CROSS, _CROSS, _CROSS),
    ("kernel_block_sizes", OneOf({16, 64}), MultipleOf(32), Exact(64)),
]


@pytest.mark.parametrize(
    ("name", "polarity", "worst", "best", "scope", "counted"), _TABLE, ids=[t[0] for t in _TABLE]
)
def test_capability_has_the_algebra_of_the_design(
    name: str, polarity: Polarity, worst: object, best: object, scope: Scope, counted: Counted
) -> None:
    """Each capability has the polarity, extremes, scope and counted uses that the design gives."""
    kind = CAPABILITIES[name]

    algebra = (kind.polarity, kind.worst, kind.best, kind.scope, kind.counted)

    assert algebra == (polarity, worst, best, scope, counted)


def test_fields_are_capabilities_or_spellings() -> None:
    """The table has the design's capabilities, in its order; other fields are their spellings."""
    others = Capabilities.model_fields.keys() - CAPABILITIES.keys()

    assert list(CAPABILITIES) == [row[0] for row in _TABLE]
    assert others == SPELLINGS.keys()


def test_capability_has_the_version_that_brought_it() -> None:
    """Each capability came with this version or an earlier one."""
    present = Version(version("backend-caps"))

    assert all(Version(kind.since) <= present for kind in CAPABILITIES.values())


def test_opting_out_of_the_mirror_alone_requires_another_capability() -> None:
    """Only `host_seq_lens` counts by a second capability: the known longest context."""
    required = {name: kind.requires for name, kind in CAPABILITIES.items() if kind.requires}

    assert required == {"host_seq_lens": "max_context_len_known"}


@pytest.mark.parametrize(("name", "one", "other", "joined"), _JOINS)
def test_capability_joins_towards_the_safe_side(
    name: str, one: object, other: object, joined: object
) -> None:
    """Needs join towards more and supports towards less."""
    assert CAPABILITIES[name].join(one, other) == joined


@pytest.mark.parametrize(
    ("scale", "names"),
    [
        (HostSeqLens, "NONE UPPER_BOUND EXACT"),
        (GraphMetadata, "HOST DEVICE IN_GRAPH"),
        (SharedReadsEnd, "PRE_REPLAY IN_REPLAY POST_REPLAY UNKNOWN"),
    ],
)
def test_scale_is_ordered_as_it_is_defined(scale: type[Scale], names: str) -> None:
    """The members of a scale rise in the order of their definition, which is their rank."""
    ordered = sorted(sorted(scale, key=lambda member: member.value))

    assert [(member.name, member.rank) for member in ordered] == [
        (name, place) for place, name in enumerate(names.split())
    ]
    assert not any(member < member or member > member for member in ordered)  # noqa: PLR0124


@pytest.mark.parametrize("value", [True, 1, "upper_bound", None])
def test_scale_member_equals_nothing_but_itself(value: object) -> None:
    """No bool, number or string is equal to a member: `True` is not the second member."""
    member: object = HostSeqLens.UPPER_BOUND

    assert member != value


@pytest.mark.parametrize("other", [GraphMetadata.DEVICE, 1, "upper_bound"])
def test_scale_compares_with_its_own_members_alone(other: object) -> None:
    """Comparing with another scale, a number or a string is an error."""
    member = HostSeqLens.NONE

    with pytest.raises(TypeError, match="not supported between instances of"):
        member < other  # noqa: B015 - comparing is what is tested


@pytest.mark.parametrize(("state", "text"), [(UNDECLARED, "UNDECLARED"), (ANY, "ANY")])
def test_state_is_shown_by_its_name(state: Enum, text: str) -> None:
    """The states that are no values are shown as they are written in a declaration."""
    assert repr(state) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (BY_HAND, "by hand"),
        (Source(distribution="fa3"), "fa3"),
        (Source(declared_at="fa3.py:3"), "fa3.py:3"),
        (Source(distribution="fa3", version="1.0", declared_at="fa3.py:3"), "fa3 1.0, fa3.py:3"),
    ],
)
def test_source_names_distribution_version_and_line(source: Source, text: str) -> None:
    """A source is written with what is known of it."""
    assert str(source) == text


_WRITES = """
from backend_caps.capability.declaration import Declaration
from tests.unit.capability.test_capabilities import EVERYTHING
print(Declaration(capabilities=EVERYTHING).model_dump_json())
"""
_RESOLVES = """
from backend_caps.capability.kind import Phase, Role
from backend_caps.report.plans import plan_document
from backend_caps.resolution.resolver import resolve
from tests.unit.building import READS, SPECULATING, flags, use
from tests.unit.capability.test_capabilities import EVERYTHING
said = {"fa3": EVERYTHING, "mla": READS}.items()
uses = [use(name, capabilities, phase=phase) for name, capabilities in said for phase in Phase]
print(plan_document(resolve(uses, flags(SPECULATING)), ()).model_dump_json())
"""


@pytest.mark.parametrize("program", [_WRITES, _RESOLVES], ids=["a declaration", "a plan"])
def test_what_is_written_does_not_depend_on_the_hash_seed(program: str) -> None:
    """Two processes whose sets are ordered differently write the same text, as ranks must."""
    paths = os.pathsep.join(filter(None, sys.path))

    written = {_output(program, {"PYTHONHASHSEED": seed, "PYTHONPATH": paths}) for seed in "123"}

    assert len(written) == 1


def _output(program: str, environ: dict[str, str]) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    return run.stdout
