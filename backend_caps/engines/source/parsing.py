"""Parse a file's text, whatever is in it."""

from __future__ import annotations

import ast
import warnings

_DEEPEST = 80
"""As deep may statements and expressions stand in one another; SGLang's and vLLM's have 40.

All that reads them recurses, and Python's stack has 1000 places.
"""
_LONGEST_LINE = 400
_MOST_BRACKETS = 40
_BRACKETS = b"()[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
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
    if _may_be_deep(text) and _is_deep(tree):
        raise UnparsedError(_TOO_DEEP)
    return tree


def _may_be_deep(text: bytes) -> bool:
    """Tell whether a text has what deep nesting is written with; most have not.

    To look into every tree takes a fifth of the time that parsing does.
    """
    return (
        text.count(b"elif ") > _DEEPEST
        or text.count(b"\\\n") > _DEEPEST
        or max(map(len, text.split(b"\n"))) > _LONGEST_LINE
        or _has_deep_brackets(text)
    )


def _has_deep_brackets(text: bytes) -> bool:
    """Take the innermost pairs of brackets away, again and again, until none is left."""
    left = text.translate(None, _OTHERS)
    for _ in range(_MOST_BRACKETS):
        inner = left.replace(b"()", b"").replace(b"[]", b"").replace(b"{}", b"")
        if inner == left:
            return False
        left = inner
    return True


def _is_deep(tree: ast.Module) -> bool:
    """Tell whether nodes stand too deep in one another; what is short is not looked into."""
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [inner for node in level for inner in _long_children(node)]
        if not level:
            return False
    return True


def _long_children(node: ast.AST) -> list[ast.AST]:
    """List the nodes in a node whose text has room for a deep one.

    It is asked of every node that is long itself, so it goes over the fields as they are stored.
    """
    found: list[ast.AST] = []
    for value in vars(node).values():
        if isinstance(value, list):
            found += [inner for inner in value if isinstance(inner, ast.AST) and _is_long(inner)]
        elif isinstance(value, ast.AST) and _is_long(value):
            found.append(value)
    return found


def _is_long(node: ast.AST) -> bool:
    place = vars(node)
    if "end_lineno" not in place:
        return bool(node._fields)  # it has no place of its own, as a clause of a comprehension
    if place["end_lineno"] != place["lineno"]:
        return True
    return bool(place["end_col_offset"] - place["col_offset"] > _DEEPEST)
