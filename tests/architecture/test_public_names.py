"""The names that users import, and the vocabulary that they write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import backend_caps

STABLE = {
    *("BackendCapsError", "BatchKind", "Capabilities", "Cause", "Configuration", "Declaration"),
    *("Facts", "Given", "GraphMetadata", "HostSeqLens", "Part", "Phase", "Plan", "Role", "Rule"),
    *("RuleSet", "ServerFlags", "SharedReadsEnd", "UNDECLARED", "Use", "When", "configure"),
    *("discover", "flips", "require_evidence", "resolve"),
}
LOADS_TORCH = ("Configuration", "GraphSizes", "configure")
"""Public, and left out of `import *`: a declaration is read without torch."""


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


def test_public_names_can_be_imported() -> None:
    """Every public name is there, under its own name."""
    for name in [*backend_caps.__all__, *LOADS_TORCH]:
        assert getattr(import_module("backend_caps"), name) is getattr(backend_caps, name)
        assert name in dir(backend_caps)


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that there is none of is refused as of any module."""
    with pytest.raises(AttributeError, match="module 'backend_caps' has no attribute 'Resolver'"):
        _ = import_module("backend_caps").Resolver


def test_version_is_that_of_the_distribution() -> None:
    """`backend_caps.__version__` is the installed version."""
    assert backend_caps.__version__ == version("backend-caps")
