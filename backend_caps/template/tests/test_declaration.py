"""What is declared, and how an installation finds it."""

from __future__ import annotations

from importlib import import_module

from backend_caps import discover

from my_attention import MyAttentionBackend
from my_attention_caps import DECLARATION


def test_installation_is_found_and_loads_no_torch() -> None:
    """The installed declaration is read as it stands here; one that loads torch has a problem."""
    found = discover()["my_attention"]

    assert [problem.code for problem in found.problems] == []
    assert found.declaration == DECLARATION


def test_declaration_names_the_class() -> None:
    """What the declaration calls its implementation can be imported, and is the backend."""
    module, _, name = str(DECLARATION.implementation).partition(":")

    implementation = vars(import_module(module))[name]

    assert implementation is MyAttentionBackend
