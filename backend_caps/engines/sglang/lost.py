"""What a factory makes without a class of the source being found for it, and when."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from backend_caps.engines.source.guards import Guards
from backend_caps.engines.source.index import FunctionDef, Index, Target, Targets, Value
from backend_caps.engines.source.module import ClassDef, Function, methods_of
from backend_caps.engines.source.returns import Makers, returns

_MOST_FUNCTIONS = 50
"""As many functions are looked at for one factory; what is past them counts as lost."""


class Lost:
    """Looks at what a factory returns for what `Makers` could not follow.

    What is left out would count as never made, and its needs with it.
    """

    def __init__(
        self, index: Index, makers: Makers, tables: Mapping[str, Mapping[str, FunctionDef]]
    ) -> None:
        self._index = index
        self._makers = makers
        self._tables = tables
        self._num_left = _MOST_FUNCTIONS

    def guards(self, function: FunctionDef, owner: ClassDef | None) -> Iterator[Guards]:
        """List the conditions under which it makes something that has no class here."""
        self._num_left = _MOST_FUNCTIONS
        yield from self._of_function(function, owner, ())

    def _of_function(
        self, function: FunctionDef, owner: ClassDef | None, around: tuple[Function, ...]
    ) -> Iterator[Guards]:
        if function.node in around:
            return
        self._num_left -= 1
        if self._num_left < 0:
            yield ()
            return
        made = [_texts(guards) for guards, _ in self._makers.made(function, owner)]
        for case in returns(function.node):
            start = _texts(case.guards)
            if is_none(case.value):
                continue
            if not any(each[: len(start)] == start for each in made):
                yield case.guards
                continue
            for guards, target in self._called(case.value, function, owner):
                if isinstance(target, FunctionDef):
                    for more in self._of_function(target, owner, (*around, function.node)):
                        yield *case.guards, *guards, *more
                elif not isinstance(target, ClassDef):
                    yield *case.guards, *guards

    def _called(
        self, value: ast.expr, function: FunctionDef, owner: ClassDef | None
    ) -> Iterator[tuple[Guards, Target]]:
        """List what a returned value is a call of; what is no call comes as the value."""
        module = function.module
        scope = module.scope_in(function.node)
        match value:
            case ast.Constant(value=None):
                return
            case ast.Tuple(elts=[*_, last]):
                yield from self._called(last, function, owner)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if (
                owner is not None and name in methods_of(owner)
            ):
                yield (), FunctionDef(owner.module, methods_of(owner)[name])
            case ast.Call(
                func=ast.Subscript(value=ast.Name(id=table), slice=ast.Constant(value=str(key)))
            ) if key in self._tables.get(table, {}):
                yield (), self._tables[table][key]
            case ast.Call(func=called):
                yield from _but_itself(self._index.resolve(called, module, (scope,)))
            case ast.Name():
                for guards, target in self._index.resolve(value, module, (scope,)):
                    if isinstance(target, Value) and not isinstance(target.node, ast.Name):
                        for more, inner in self._called(target.node, function, owner):
                            yield (*guards, *more), inner
                    else:
                        yield guards, target
            case _:
                yield (), Value(module, value)


def _but_itself(targets: Targets) -> Targets:
    """Leave out `Name = Name`, which says nothing of what the name stands for."""
    return [
        (guards, target)
        for guards, target in targets
        if not (isinstance(target, Value) and isinstance(target.node, ast.Name))
        or len(targets) == 1
    ]


def is_none(value: ast.expr) -> bool:
    """Tell whether a factory's return makes nothing: `None`, or a tuple that ends in it."""
    match value:
        case ast.Constant(value=None) | ast.Tuple(elts=[*_, ast.Constant(value=None)]):
            return True
    return False


def _texts(guards: Iterable[ast.expr]) -> list[str]:
    return [ast.unparse(guard) for guard in guards]
