"""Parse a file's text, whatever is in it."""

from __future__ import annotations

import ast
import warnings

_DEEPEST = 80
"""As deep may statements and expressions stand in one another; SGLang's and vLLM's have 40.

All that reads them recurses, and Python's stack has 1000 places.
"""
_TOO_DEEP = f"it is nested more than {_DEEPEST} deep"


class UnparsedError(Exception):
    """A text is no Python that can be read; the argument says why."""


def parsed(text: bytes) -> ast.Module:
    """Parse a text, without a word on what a linter would warn of.

    Raises:
        UnparsedError: it cannot be parsed, or is nested too deep.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise UnparsedError(_TOO_DEEP) from error
    except (SyntaxError, ValueError) as error:
        raise UnparsedError(f"{type(error).__name__}: {error}") from error
    if _is_deep(tree):
        raise UnparsedError(_TOO_DEEP)
    return tree


def _is_deep(tree: ast.Module) -> bool:
    """Tell whether nodes stand too deep in one another; what is short is not looked into."""
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [node for each in level for node in ast.iter_child_nodes(each) if _is_long(node)]
        if not level:
            return False
    return True


def _is_long(node: ast.AST) -> bool:
    """Tell whether a node's text has room for a deep one."""
    if isinstance(node, ast.stmt | ast.expr) and node.end_lineno == node.lineno:
        assert node.end_col_offset is not None, "the parser sets it"
        return node.end_col_offset - node.col_offset > _DEEPEST
    return bool(node._fields)
