"""The registered names that vLLM's own platforms name where they choose an attention backend."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from backend_caps.engines.source.index import Index

PLATFORMS = ("cuda", "rocm", "cpu", "xpu")
"""The modules of `vllm.platforms` that choose; others take what these do."""
_ENUMS = frozenset({"AttentionBackendEnum", "_Backend"})
_VISION = "vit"
"""In the name of a function that chooses for the encoder of images, which is another layer."""


def platform_names(index: Index) -> Mapping[str, Mapping[str, str]]:
    """Return, by registered name and platform, the `file:line` that names it.

    A platform may name a backend and refuse it for a model; one that it does not name, it does not
    choose by itself.
    """
    found: dict[str, dict[str, str]] = {}
    for platform in PLATFORMS:
        if (module := index.parse(f"vllm/platforms/{platform}.py")) is None:
            continue
        for node in _named(module.tree):
            found.setdefault(node.attr, {}).setdefault(platform, module.at(node))
    return found


def _named(tree: ast.AST) -> Iterator[ast.Attribute]:
    """List the members of the registry that a tree names, in the order of its lines."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) if _VISION in name.split("_"):
                continue
            case ast.Attribute(value=ast.Name(id=enum)) if enum in _ENUMS:
                yield node
        yield from _named(node)
