from __future__ import annotations

import pytest

from backend_caps.capability.kind import (
    DRAFT_TREES,
    EVERY_USE,
    RELAY_LOOP,
    Counted,
    Phase,
    Polarity,
    Role,
    Scope,
)
from backend_caps.capability.scale import ANY
from backend_caps.capability.sizes import Exact, MultipleOf, Unchecked
from backend_caps.capability.vocabulary import (
    CAPABILITIES,
    NO_LIMIT,
    SPELLINGS,
    TOP_PRIORITY,
    AttentionArch,
    BatchKind,
    Capabilities,
    GraphMetadata,
    HostSeqLens,
    SharedReadsEnd,
)

_NEED, _SUPPORT = Polarity.NEED, Polarity.SUPPORT
_SERVER, _PHASE, _USE = Scope.SERVER, Scope.PHASE, Scope.USE
_NOTHING: frozenset[object] = frozenset()

_TABLE = [
    ("host_seq_lens", _NEED, HostSeqLens.EXACT, HostSeqLens.NONE, _SERVER, RELAY_LOOP),
    ("graph_replay", _SUPPORT, _NOTHING, frozenset(BatchKind), _PHASE, EVERY_USE),
    ("graph_metadata", _SUPPORT, GraphMetadata.HOST, GraphMetadata.IN_GRAPH, _PHASE, EVERY_USE),
    ("sync_free_prepare", _SUPPORT, False, True, _PHASE, EVERY_USE),
    (
        "shared_reads_end",
        _NEED,
        SharedReadsEnd.UNKNOWN,
        SharedReadsEnd.PRE_REPLAY,
        _PHASE,
        EVERY_USE,
    ),
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
    ("auto_priority", _SUPPORT, 0, TOP_PRIORITY, _USE, EVERY_USE),
]

_JOINS = [
    pytest.param(
        "host_seq_lens",
        HostSeqLens.UPPER_BOUND,
        HostSeqLens.NONE,
        HostSeqLens.UPPER_BOUND,
        id="a need joins to more",
    ),
    pytest.param(
        "graph_replay",
        frozenset({BatchKind.MIXED_BATCH, BatchKind.UNIFORM_BATCH}),
        frozenset({BatchKind.UNIFORM_BATCH, BatchKind.SINGLE_TOKEN_DECODE}),
        frozenset({BatchKind.UNIFORM_BATCH}),
        id="sets join to what they share",
    ),
    pytest.param(
        "graph_metadata",
        GraphMetadata.IN_GRAPH,
        GraphMetadata.DEVICE,
        GraphMetadata.DEVICE,
        id="a support joins to less",
    ),
    pytest.param("sync_free_prepare", True, False, False, id="a permission needs both"),
    pytest.param(
        "shared_reads_end",
        SharedReadsEnd.IN_REPLAY,
        SharedReadsEnd.POST_REPLAY,
        SharedReadsEnd.POST_REPLAY,
        id="the later end counts",
    ),
    pytest.param("two_batch_overlap", True, True, True, id="both permit"),
    pytest.param("deterministic", False, True, False, id="one unsteady backend is enough"),
    pytest.param("batch_invariant", True, False, False, id="one that looks at others is enough"),
    pytest.param("max_speculative_topk", 4, 8, 4, id="the smaller limit counts"),
    pytest.param("devices", ANY, frozenset({"cuda"}), frozenset({"cuda"}), id="any and some"),
    pytest.param("dtypes", frozenset({"a"}), ANY, frozenset({"a"}), id="some and any"),
    pytest.param(
        "page_sizes", MultipleOf(16), Exact(64), Exact(64), id="sizes join to what they share"
    ),
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


def test_table_holds_every_capability_in_order() -> None:
    """The table lists the design's capabilities in its order, and no spelling twice."""
    names = list(CAPABILITIES)

    assert names == [row[0] for row in _TABLE]


def test_fields_are_capabilities_or_spellings() -> None:
    """Each field of `Capabilities` is in the table, or a second spelling of one that is."""
    others = Capabilities.model_fields.keys() - CAPABILITIES.keys()

    assert others == SPELLINGS.keys()


def test_opting_out_of_the_mirror_alone_requires_another_capability() -> None:
    """Only `host_seq_lens` counts by a second capability: the known longest context."""
    required = {name: kind.requires for name, kind in CAPABILITIES.items() if kind.requires}

    assert required == {"host_seq_lens": "max_context_len_known"}


@pytest.mark.parametrize(("name", "one", "other", "joined"), _JOINS)
def test_capability_joins_towards_the_safe_side(
    name: str, one: object, other: object, joined: object
) -> None:
    """Needs join towards more and supports towards less."""
    join = CAPABILITIES[name].join

    actual = join(one, other)

    assert actual == joined


def test_relay_loop_holds_every_forward_but_prefill() -> None:
    """The forwards that take lengths from the relay are all that are no prefill."""
    phases = {phase for _, phase in RELAY_LOOP}

    assert (phases, len(RELAY_LOOP)) == ({Phase.DECODE, Phase.VERIFY}, 6)


def test_draft_trees_are_rows_of_verify_and_draft() -> None:
    """Draft trees are what verify, the draft's steps and draft-extend run on."""
    trees = DRAFT_TREES

    assert trees == {
        (Role.TARGET, Phase.VERIFY),
        (Role.DRAFT, Phase.DECODE),
        (Role.DRAFT_EXTEND, Phase.VERIFY),
    }


def test_families_of_attention_are_named_as_in_the_field() -> None:
    """Attention families carry the field's short names."""
    values = {arch.value for arch in AttentionArch}

    assert values == {"mha", "mla", "ssm", "sparse"}
