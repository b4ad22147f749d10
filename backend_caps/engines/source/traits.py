"""What functions and classes of a program declare: yields, and names of outer scopes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traits:
    """What the own statements of a function or of a class, without inner ones, declare."""

    yields: bool = False
    global_names: frozenset[str] = frozenset()
    nonlocal_names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, body: Sequence[ast.AST]) -> Traits:
        """Read statements, or the expression of a lambda."""
        yields, globals_, nonlocals = False, set[str](), set[str]()
        found: list[ast.AST] = [*body]
        while found:
            each = found.pop()
            yields = yields or isinstance(each, ast.Yield | ast.YieldFrom)
            if isinstance(each, ast.Global):
                globals_.update(each.names)
            if isinstance(each, ast.Nonlocal):
                nonlocals.update(each.names)
            if not isinstance(
                each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
            ):
                found.extend(ast.iter_child_nodes(each))
        return cls(yields, frozenset(globals_), frozenset(nonlocals))


NO_TRAITS = Traits()
