"""The bases of a class, and the order in which its attributes are looked up."""

from __future__ import annotations

import ast

from backend_caps.engines import problems
from backend_caps.engines.source.index import External, Index, Target
from backend_caps.engines.source.module import ClassDef, Scope

_DEEPEST = 100
"""As many classes may stand below one another; nobody's classes do."""
Base = ClassDef | External
Order = tuple[Base, ...]


class Classes:
    """Resolves bases across files, each class once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._orders: dict[ClassDef, Order] = {}
        self._open: set[ClassDef] = set()

    def order(self, definition: ClassDef) -> Order:
        """List a class and its bases in the method resolution order."""
        if definition not in self._orders:
            self._tell_of_twins(definition)
            self._open.add(definition)
            self._orders[definition] = self._linear(definition)
            self._open.discard(definition)
        return self._orders[definition]

    def ancestors(self, definition: ClassDef) -> tuple[ClassDef, ...]:
        """List the classes of the tree in a class's order, itself first."""
        return tuple(base for base in self.order(definition) if isinstance(base, ClassDef))

    def descends(self, definition: ClassDef, root: str) -> bool:
        """Tell whether a class is below the one of a dotted path."""
        return any(base.path == root for base in self.ancestors(definition)[1:])

    def _linear(self, definition: ClassDef) -> Order:
        bases = [base for node in definition.node.bases for base in self._base(definition, node)]
        orders = [self.order(base) if isinstance(base, ClassDef) else (base,) for base in bases]
        merged = _merged([list(order) for order in orders] + [list(bases)])
        if merged is None:
            self._index.tell(problems.no_order(definition.at, definition.name))
            merged = list(dict.fromkeys(base for order in orders for base in order))
        return definition, *merged

    def _tell_of_twins(self, definition: ClassDef) -> None:
        twins = definition.module.by_path[definition.path]
        if len(twins) > 1 and any(each.guards for each in twins):
            others = [f"line {each.node.lineno}" for each in twins[1:]]
            self._index.tell(problems.defined_twice(twins[0].at, definition.name, others))

    def _base(self, definition: ClassDef, node: ast.expr) -> list[Base]:
        """Resolve one base; of several that a condition chooses from, the first counts."""
        found = self._index.resolve(node, definition.module, self._around(definition, node))
        targets = [target for _, target in found]
        for target in targets:
            if isinstance(target, External):
                return self._outside(definition, target)
            if isinstance(target, ClassDef) and self._is_closed(target):
                return [target]
        self._tell_of_base(definition, ast.unparse(node), targets)
        return []

    def _around(self, definition: ClassDef, node: ast.expr) -> list[Scope]:
        """List what is bound where a class statement stands, when it runs."""
        module = definition.module
        if definition.functions:
            return [module.scope_in(function) for function in definition.functions]
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        return [module.scope_before(definition.node.lineno, names)]

    def _is_closed(self, definition: ClassDef) -> bool:
        """Tell whether a class's bases are known, or may be asked for."""
        if definition in self._orders:
            return len(self._orders[definition]) < _DEEPEST
        return definition not in self._open and len(self._open) < _DEEPEST

    def _tell_of_base(self, definition: ClassDef, base: str, targets: list[Target]) -> None:
        if any(isinstance(target, ClassDef) for target in targets):
            self._index.tell(problems.no_order(definition.at, definition.name))
        elif targets:
            self._index.tell(problems.dynamic_base(definition.at, definition.name, base))
        else:
            self._index.tell(problems.base_not_found(definition.at, definition.name, base))

    def _outside(self, definition: ClassDef, target: External) -> list[Base]:
        if target.path.partition(".")[0] == self._index.tree.package:
            self._index.tell(problems.base_not_found(definition.at, definition.name, target.path))
        return [] if target.path == "builtins.object" else [target]


def _merged(orders: list[list[Base]]) -> list[Base] | None:
    """Merge the bases' orders by C3; None where there is no order."""
    merged: list[Base] = []
    while orders := [order for order in orders if order]:
        heads = (order[0] for order in orders)
        good = next((h for h in heads if not any(h in order[1:] for order in orders)), None)
        if good is None:
            return None
        merged.append(good)
        orders = [[base for base in order if base != good] for order in orders]
    return merged
