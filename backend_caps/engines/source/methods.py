"""The statements of classes and their methods that give some names their values."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from backend_caps.engines.source.guards import (
    Case,
    Function,
    Guards,
    branches,
    conditions,
    guarded,
    in_turn,
    met,
    negated,
    returns,
    where,
)
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import (
    ClassDef,
    Module,
    alternatives_of,
    assigned,
    is_setter,
    lines_of,
)

_IN_PLACE: dict[type[ast.operator], bool] = {ast.BitOr: True, ast.BitAnd: False}
"""The value that `|=` and `&=` give where their right side holds, or does not."""
_SIGNS: dict[type[ast.operator], str] = {ast.BitOr: "|", ast.BitAnd: "&"}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that gives a name its value."""

    name: str
    owner: ClassDef
    """The class whose body, or whose method, it stands in."""
    value: ast.expr | Function
    """A function where a method or a property has the name."""
    guards: Guards
    line: int
    operator: type[ast.operator] | None = None
    """Of `|=` and the like."""

    @property
    def at(self) -> str:
        """`file:line`."""
        return f"{self.owner.module.path}:{self.line}"

    @property
    def text(self) -> str:
        """The statement as the source has it, with its condition."""
        if not isinstance(self.value, ast.expr):
            return where(f"def {self.name}", self.guards)
        sign = "=" if self.operator is None else f"{_SIGNS.get(self.operator, '?')}="
        return where(f"{self.name} {sign} {ast.unparse(self.value)}", self.guards)

    @property
    def is_certain(self) -> bool:
        """Whether it always runs, and leaves nothing of what the name had."""
        return not self.guards and self.operator is None

    @property
    def cases(self) -> list[Case]:
        """Its values, and when they hold; of a method or a property, what it returns.

        `|=` is a case in which the value is true, `&=` one in which it is false; the branches of
        a conditional expression are cases of their own.
        """
        if isinstance(self.value, Function):
            return [Case(case.value, self.guards + case.guards) for case in returns(self.value)]
        if self.operator is None:
            return branches(self.value, self.guards)
        value = _IN_PLACE.get(self.operator)
        if value is None:
            return []
        held = self.value if value else negated(self.value)
        return branches(ast.Constant(value=value), (*self.guards, held))


Step = tuple[Guards, Statement | ast.Call]
"""What a method does, and when: it gives a name its value, or calls what may."""
Setter = tuple[Guards, Function, Sequence[Statement]]
"""A method that gives names their values, and when the class has it."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What is left standing of a name: the last statement that always runs, and those after it."""

    statements: tuple[Statement, ...]

    @property
    def base(self) -> Statement | None:
        """The one that always runs."""
        first = self.statements[0]
        return first if first.is_certain else None

    @property
    def last(self) -> Statement:
        """The one that decides."""
        return self.statements[-1]

    @property
    def words(self) -> str:
        """The statements in the source's words."""
        return "; ".join(statement.text for statement in self.statements)


@dataclass(frozen=True, slots=True)
class StatedValue:
    """A value, when it holds, and the class whose statement gives it."""

    value: ast.expr
    guards: Guards
    owner: ClassDef

    @property
    def truth(self) -> bool:
        """The value of a constant, as a flag is taken."""
        assert isinstance(self.value, ast.Constant), ast.unparse(self.value)
        return bool(self.value.value)


def values_of(stated: Stated) -> list[StatedValue]:
    """List the values of an attribute, or what the property or method of its name returns."""
    return _held(_values(stated), stated)


def truths_of(stated: Stated) -> list[StatedValue]:
    """List the values as constants: what is computed is a case of its truth.

    Where its guards hold and it does not, the flag is false.
    """
    found: list[StatedValue] = []
    for each in _values(stated):
        if isinstance(each.value, ast.Constant):
            found.append(each)
        else:
            true = replace(each, value=ast.Constant(value=True), guards=(*each.guards, each.value))
            found += [replace(each, value=ast.Constant(value=False)), true]
    return _held(found, stated)


def _values(stated: Stated) -> Iterator[StatedValue]:
    is_method = isinstance(stated.last.value, Function)
    for statement in stated.statements[-1:] if is_method else stated.statements:
        if is_method or not isinstance(statement.value, Function):
            for case in statement.cases:
                yield StatedValue(case.value, case.guards, statement.owner)


def _held(values: Iterable[StatedValue], stated: Stated) -> list[StatedValue]:
    """List what may hold: of statements the last counts, of returns each is a way out."""
    found: list[StatedValue] = []
    for each in values:
        guards = met(tuple(conditions(each.guards)))
        if guards is None:
            continue
        if not guards and not isinstance(stated.last.value, Function):
            found = []
        found.append(replace(each, guards=guards))
    return found


def words_of(stated: Stated, definition: ClassDef, root: ClassDef) -> str:
    """Write what a class has, and whose words these are where a base adds some."""
    owners = {each.owner for each in stated.statements}
    return "; ".join(
        f"{each.owner.name}: {_words(each)}"
        if definition in owners and each.owner not in {definition, root}
        else _words(each)
        for each in stated.statements
    )


def _words(statement: Statement) -> str:
    if not isinstance(statement.value, Function):
        return statement.text
    cases = in_turn(returns(statement.value))
    found = "; ".join(where(ast.unparse(case.value), case.guards) for case in cases)
    return where(f"returns {found or 'nothing'}", statement.guards)


def standing(statements: Iterable[Statement]) -> list[Statement]:
    """List what is left of a name's statements: the last that is certain, and those after it.

    What never runs is left out, and a condition that is a constant, as of `while True:`, is none.
    """
    left: list[Statement] = []
    for statement in statements:
        guards = met(tuple(conditions(statement.guards)))
        if guards is None:
            continue
        kept = replace(statement, guards=guards) if statement.guards else statement
        if kept.is_certain:
            left = []
        left.append(kept)
    return left


def named(target: ast.expr) -> str | None:
    """Read a name."""
    return target.id if isinstance(target, ast.Name) else None


def of_self(target: ast.expr) -> str | None:
    """Read the name of an attribute of `self`."""
    match target:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return None


class Methods:
    """Reads methods, each once, where the text says that one of the names is in them."""

    def __init__(self, index: Index, names: Collection[str]) -> None:
        self._index = index
        self.names = frozenset(names)
        self._steps: dict[Function, list[Step]] = {}
        self._callers: dict[tuple[ClassDef, str], list[str]] = {}
        self._setters: dict[ClassDef, list[Setter]] = {}
        self._lines: dict[tuple[str, frozenset[str]], list[int]] = {}

    def bindings(
        self,
        owner: ClassDef,
        node: ast.stmt,
        guards: Guards,
        name_of: Callable[[ast.expr], str | None],
    ) -> Iterator[Statement]:
        """List what a statement gives one of the names, of a class body or of `self`."""
        found: list[tuple[str | None, ast.expr | Function, type[ast.operator] | None]] = []
        match node:
            case ast.Assign() | ast.AnnAssign():
                found = [(name_of(target), value, None) for target, value in assigned(node)]
            case ast.AugAssign(target=target, op=operator, value=value):
                found = [(name_of(target), value, type(operator))]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name_of is named and not is_setter(node):
                    found = [(name, node, None)]
        for bound, given, sign in found:
            if bound is not None and bound in self.names:
                yield Statement(bound, owner, given, guards, node.lineno, sign)

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
            if has_names:
                for own in self.bindings(owner, node, guards, of_self):
                    yield guards, own

    def setters(self, owner: ClassDef) -> Sequence[Setter]:
        """List the methods of a class that themselves give one of the names a value."""
        if owner not in self._setters:
            self._setters[owner] = list(self._all_setters(owner))
        return self._setters[owner]

    def _all_setters(self, owner: ClassDef) -> Iterator[Setter]:
        if not self.mentions(owner, owner.node):
            return
        for alternatives in alternatives_of(owner).values():
            for guards, method in alternatives:
                is_read = self.mentions(owner, method) and self._may_set(owner, method)
                steps = self.steps(owner, method) if is_read else ()
                own = [step for _, step in steps if isinstance(step, Statement)]
                if own:
                    yield guards, method, own

    def _may_set(self, owner: ClassDef, method: Function) -> bool:
        """Return whether an assignment in a method has one of the names to its left."""
        return any(
            isinstance(node, ast.Attribute) and node.attr in self.names
            for piece, _ in pieces(method, self.lines(owner.module, self.names))
            for target in targets_of(piece)
            for node in ast.walk(target)
        )

    def leading(self, order: Sequence[ClassDef]) -> set[str]:
        """List the names of methods that give one of the names a value, or may call one that does.

        It is by their text: what is not among them need not be followed.
        """
        names = {method.name for base in order for _, method, _ in self.setters(base)}
        fresh = set(names)
        while fresh:
            callers = {
                each for name in fresh for base in order for each in self._mentioning(base, name)
            }
            fresh = callers - names
            names |= fresh
        return names

    def _mentioning(self, owner: ClassDef, word: str) -> Sequence[str]:
        """List the names of the methods whose text has a word in it."""
        key = owner, word
        if key not in self._callers:
            lines = self.lines(owner.module, {word})
            self._callers[key] = [
                name
                for name, own in (alternatives_of(owner).items() if lines else ())
                if any(_spans(method, lines) for _, method in own)
            ]
        return self._callers[key]

    def mentions(self, definition: ClassDef, node: ast.stmt) -> bool:
        """Return whether the text of a class or function has one of the names in it."""
        lines = self.lines(definition.module, self.names)
        at = bisect_left(lines, node.lineno)
        return at < len(lines) and lines[at] <= (node.end_lineno or node.lineno)

    def lines(self, module: Module, words: Collection[str]) -> Sequence[int]:
        """List the lines of a file that have one of some words, in their order."""
        key = module.path, frozenset(words)
        if key not in self._lines:
            text = self._index.tree.files[module.path]
            patterns = (re.compile(re.escape(word.encode())) for word in words)
            self._lines[key] = sorted({n for each in patterns for n, _ in lines_of(text, each)})
        return self._lines[key]


def targets_of(node: ast.AST) -> Sequence[ast.expr]:
    """List what an assignment has to its left."""
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
            if not _spans(child, lines):
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
        elif not isinstance(node, ast.Module) and _spans(child, lines):
            yield child, around


def _spans(node: ast.AST, lines: Sequence[int]) -> bool:
    """Return whether a node spans any of `lines`; nodes without a position count."""
    if not isinstance(node, ast.stmt | ast.expr):
        return True
    first = node.lineno
    if isinstance(node, ast.ClassDef | Function) and node.decorator_list:
        first = node.decorator_list[0].lineno
    return bisect_left(lines, first) < bisect_right(lines, node.end_lineno or first)
