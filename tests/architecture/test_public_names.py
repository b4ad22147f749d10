"""The names that users import, and the vocabulary that they write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import backend_caps
from backend_caps.capability.kind import Scope
from backend_caps.capability.vocabulary import CAPABILITIES

STABLE = {
    "BackendCapsError",
    "BatchKind",
    "Capabilities",
    "Cause",
    "Configuration",
    "Declaration",
    "Facts",
    "Given",
    "GraphMetadata",
    "HostSeqLens",
    "Part",
    "Phase",
    "Plan",
    "Role",
    "Rule",
    "RuleSet",
    "ServerFlags",
    "SharedReadsEnd",
    "UNDECLARED",
    "Use",
    "When",
    "configure",
    "discover",
    "flips",
    "require_evidence",
    "resolve",
}
LOADS_TORCH = ("Configuration", "GraphSizes", "configure")
"""Public, and left out of `import *`: a declaration is read without torch."""
VOCABULARY = {
    "host_seq_lens": Scope.SERVER,
    "graph_replay": Scope.PHASE,
    "graph_metadata": Scope.PHASE,
    "sync_free_prepare": Scope.PHASE,
    "shared_reads_end": Scope.PHASE,
    "two_batch_overlap": Scope.SERVER,
    "deterministic": Scope.SERVER,
    "batch_invariant": Scope.SERVER,
    "max_context_len_known": Scope.USE,
    "roles": Scope.USE,
    "max_speculative_topk": Scope.SERVER,
    "page_sizes": Scope.SERVER,
    "devices": Scope.USE,
    "dtypes": Scope.USE,
    "kv_cache_dtypes": Scope.USE,
    "head_sizes": Scope.USE,
    "compute_capability": Scope.USE,
    "attention_arch": Scope.USE,
    "auto_priority": Scope.USE,
}


def _statically_imported() -> Iterator[str]:
    """List the names that a type checker sees in the package."""
    source = Path(backend_caps.__file__).read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If):
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom):
                    yield from (alias.name for alias in inner.names)


def test_stable_names_are_public() -> None:
    """No name that was promised is missing."""
    missing = STABLE - {*backend_caps.__all__, *LOADS_TORCH}

    assert missing == set()


def test_type_checkers_and_the_program_see_the_same_names() -> None:
    """The names for type checkers are the names that are loaded on first use."""
    static = sorted(_statically_imported())

    assert static == sorted([*backend_caps.__all__, *LOADS_TORCH])


@pytest.mark.parametrize("name", [*backend_caps.__all__, *LOADS_TORCH])
def test_public_name_can_be_imported(name: str) -> None:
    """Every public name is there, under its own name."""
    value = getattr(import_module("backend_caps"), name)

    assert value is getattr(backend_caps, name)
    assert name in dir(backend_caps)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that there is none of is refused as of any module."""
    with pytest.raises(AttributeError, match="module 'backend_caps' has no attribute 'Resolver'"):
        _ = import_module("backend_caps").Resolver


def test_vocabulary_is_frozen() -> None:
    """A capability enters or leaves the vocabulary, or changes its scope, on purpose."""
    scopes = {name: kind.scope for name, kind in CAPABILITIES.items()}

    assert scopes == VOCABULARY
