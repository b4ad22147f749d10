"""What the methods of classes do to some names, each method read once."""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence

from backend_caps.engines.source.guards import Guards, guarded
from backend_caps.engines.source.index import External, Index
from backend_caps.engines.source.module import ClassDef, Function, Module, alternatives_of
from backend_caps.engines.source.statements import Statement, bound, of_self

Step = tuple[Guards, Statement | ast.Call]
"""What a method does, and when: it gives a name its value, or calls what may."""

Giving = tuple[Guards, Function, Sequence[Statement]]
"""A method that gives names their values, and when the class has it."""


class Methods:
    """Reads methods, where the text says that one of the names is in them."""

    def __init__(self, index: Index, names: Collection[str]) -> None:
        self._index = index
        self.names = frozenset(names)
        self._steps: dict[Function, list[Step]] = {}
        self._callers: dict[tuple[ClassDef, str], list[str]] = {}
        self._giving: dict[ClassDef, list[Giving]] = {}
        self._lines: dict[tuple[str, frozenset[str]], list[int]] = {}

    def steps(self, owner: ClassDef, function: Function) -> list[Step]:
        """List what a method does that may give one of the names a value, in its order."""
        if function not in self._steps:
            self._steps[function] = list(self._read(owner, function))
        return self._steps[function]

    def _read(self, owner: ClassDef, function: Function) -> Iterator[Step]:
        has_names = self.mentions(owner, function)
        for statement in guarded(function.body):
            node, guards = statement.node, statement.guards
            match node:
                case (
                    ast.Expr(value=ast.Call() as call)
                    | ast.Assign(value=ast.Call() as call)
                    | ast.AnnAssign(value=ast.Call() as call)
                    | ast.Return(value=ast.Call() as call)
                ):
                    yield guards, call
            for name, value, operator in bound(node, of_self) if has_names else ():
                if name in self.names:
                    yield guards, Statement(name, owner, value, guards, node.lineno, operator)

    def giving(self, owner: ClassDef) -> Sequence[Giving]:
        """List the methods of a class that themselves give one of the names a value."""
        if owner not in self._giving:
            self._giving[owner] = list(self._all_giving(owner))
        return self._giving[owner]

    def _all_giving(self, owner: ClassDef) -> Iterator[Giving]:
        if not self.mentions(owner, owner.node):
            return
        for alternatives in alternatives_of(owner).values():
            for guards, method in alternatives:
                is_read = self.mentions(owner, method) and self._may_give(owner, method)
                steps = self.steps(owner, method) if is_read else ()
                own = [step for _, step in steps if isinstance(step, Statement)]
                if own:
                    yield guards, method, own

    def _may_give(self, owner: ClassDef, method: Function) -> bool:
        """Tell whether an assignment in a method has one of the names to its left."""
        lines = self.lines(owner.module, self.names)
        return any(
            isinstance(node, ast.Attribute) and node.attr in self.names
            for piece, _ in pieces(method, lines)
            for target in _targets(piece)
            for node in ast.walk(target)
        )

    def leading(self, order: Sequence[ClassDef]) -> set[str]:
        """List the names of methods that give one of the names a value, or may call one that does.

        It is by their text: what is not among them need not be followed.
        """
        names = {method.name for base in order for _, method, _ in self.giving(base)}
        fresh = set(names)
        while fresh:
            callers = {each for name in fresh for base in order for each in self._with(base, name)}
            fresh = callers - names
            names |= fresh
        return names

    def _with(self, owner: ClassDef, word: str) -> Sequence[str]:
        """List the names of the methods whose text has a word in it."""
        key = owner, word
        if key not in self._callers:
            lines = self.lines(owner.module, {word})
            self._callers[key] = [
                name
                for name, own in (alternatives_of(owner).items() if lines else ())
                if any(_is_on(method, lines) for _, method in own)
            ]
        return self._callers[key]

    def mentions(self, definition: ClassDef, node: ast.stmt) -> bool:
        """Tell whether the text of a class or function has one of the names in it."""
        lines = self.lines(definition.module, self.names)
        at = bisect_left(lines, node.lineno)
        return at < len(lines) and lines[at] <= (node.end_lineno or node.lineno)

    def lines(self, module: Module, words: Collection[str]) -> Sequence[int]:
        """List the lines of a file that have one of some words, in their order."""
        key = module.path, frozenset(words)
        if key not in self._lines:
            text = self._index.tree.files[module.path]
            self._lines[key] = sorted({n for word in words for n in _lines(text, word.encode())})
        return self._lines[key]

    def base(self, node: ast.expr, owner: ClassDef, function: Function) -> ClassDef | None:
        """Find the one class that an expression in a method names; None where it is outside.

        Raises:
            LookupError: it names no class that can be followed.
        """
        module = owner.module
        found = self._index.resolve(node, module, (module.scope_in(function),))
        targets = [target for _, target in found]
        if len(targets) != 1 or not isinstance(targets[0], ClassDef | External):
            raise LookupError
        return targets[0] if isinstance(targets[0], ClassDef) else None


def _lines(text: bytes, word: bytes) -> Iterator[int]:
    line, past, at = 1, 0, text.find(word)
    while at >= 0:
        line += text.count(b"\n", past, at)
        past = at
        yield line
        at = text.find(word, at + 1)


def _targets(node: ast.AST) -> Sequence[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return [target]
    return ()


def pieces(
    node: ast.AST, lines: Sequence[int], around: tuple[ast.stmt, ...] = ()
) -> Iterator[tuple[ast.AST, tuple[ast.stmt, ...]]]:
    """List the smallest statements, and heads of larger ones, that stand on some lines.

    Each comes with the functions and classes around it, outermost first.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if not _is_on(child, lines):
                continue
            if isinstance(child, ast.ClassDef | Function):
                yield from ((each, around) for each in child.decorator_list)
                yield from pieces(child, lines, (*around, child))
            elif hasattr(child, "body") or isinstance(child, ast.Match):
                yield from pieces(child, lines, around)
            else:
                yield child, around
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            yield from pieces(child, lines, around)
        elif not isinstance(node, ast.Module) and _is_on(child, lines):
            yield child, around


def _is_on(node: ast.AST, lines: Sequence[int]) -> bool:
    """Tell whether a node stands on one of some lines; what has no place of its own may."""
    if not isinstance(node, ast.stmt | ast.expr):
        return True
    first = node.lineno
    if isinstance(node, ast.ClassDef | Function) and node.decorator_list:
        first = node.decorator_list[0].lineno
    return bisect_left(lines, first) < bisect_right(lines, node.end_lineno or first)
