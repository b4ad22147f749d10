"""Values that can be read off the text: numbers, names of dtypes, and lists of them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from backend_caps.engines.source.index import Index, Value
from backend_caps.engines.source.module import Module
from backend_caps.engines.vllm.lookup import Answer

Item = int | str
"""A number, a name, or `multiple of 16`."""
MULTIPLE_OF = "multiple of "


class Constants:
    """Reads values; a name is followed to what its module binds it to."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def items(self, value: ast.expr, answer: Answer) -> tuple[Item, ...] | None:
        """List the items of a list or a tuple; None where only running code knows them.

        Args:
            value: such as `[16, MultipleOf(64)]`, `list(SIZES)` or `(*NAMES, torch.float16)`.
            answer: where it stands.
        """
        return self._items(value, answer.owner.module, answer)

    def _items(
        self, value: ast.expr, module: Module, local: Answer | None
    ) -> tuple[Item, ...] | None:
        match value:
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return self._of_parts(parts, module, local)
            case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
                return self._items(inner, module, local)
            case ast.Name():
                target = self._bound(value, module, local)
                return self._items(target.node, target.module, None) if target else None
        return None

    def _of_parts(
        self, parts: Sequence[ast.expr], module: Module, local: Answer | None
    ) -> tuple[Item, ...] | None:
        found: list[Item] = []
        for part in parts:
            if isinstance(part, ast.Starred):
                more = self._items(part.value, module, local)
            else:
                one = self._item(part, module, local)
                more = None if one is None else (one,)
            if more is None:
                return None
            found += more
        return tuple(found)

    def _item(self, value: ast.expr, module: Module, local: Answer | None) -> Item | None:
        match value:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() | str() as item):
                return item
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return name
            case ast.Call(func=ast.Name(id="MultipleOf"), args=[ast.Constant(value=int() as base)]):
                return f"{MULTIPLE_OF}{base}"
            case ast.Name():
                target = self._bound(value, module, local)
                return self._item(target.node, target.module, None) if target else None
        return None

    def _bound(self, name: ast.Name, module: Module, local: Answer | None) -> Value | None:
        """Follow a module's name; one that a function binds is not known before it runs."""
        if local is not None and name.id in local.local_names:
            return None
        match self._index.resolve(name, module):
            case [((), Value(node=ast.expr()) as target)] if not isinstance(target.node, ast.Name):
                return target
        return None
