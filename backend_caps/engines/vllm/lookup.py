"""The nearest statement of a name in a class's bases, and the values of its expressions.

Numbers, dtypes, lists of them and compute windows are read from expressions, without running any.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, cached_property, reduce

from backend_caps.capability.backend import Reading
from backend_caps.capability.facts import Given
from backend_caps.capability.kind import ANY
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import ComputeRange, Version, Windows, overlap
from backend_caps.engines.reading import Finding
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Function, Guarded, condition, grouped, negated, where
from backend_caps.engines.source.index import Index, Targets, Value
from backend_caps.engines.source.module import ClassDef, Scope
from backend_caps.engines.source.statements import Stated, StatedValue, live_statements, statements

Item = int | str
"""A number, a name, or `multiple of 16`."""
MULTIPLE_OF = "multiple of "
_ASKS = re.compile(r"(?P<negated>not )?cls\.(?:(?P<getter>\w+)\(\)\.)?(?P<name>\w+)(?:\(\))?")
"""A root's question to another statement, of the class or of one that it names."""
_GETS = re.compile(r"bool\(getattr\((.+), '(\w+)', False\)\)")
Values = Sequence[Guarded[object]]
"""A capability's value for each case, in the order of the source."""


@dataclass(frozen=True)
class Answer(Stated):
    """What one class states under a name: the value of an attribute, or what a method returns.

    It has no slots, as its texts are cached for all classes that inherit it.
    """

    index: Index

    @property
    def owner(self) -> ClassDef:
        """The class whose body has the statement."""
        return self.last.owner

    @cached_property
    def cases(self) -> tuple[StatedValue, ...]:
        """The values with their conditions."""
        return tuple(case for each in self.statements for case in each.cases)

    @property
    def function(self) -> Function | None:
        """The method, if the last statement defines one."""
        return self.last.value if isinstance(self.last.value, Function) else None

    @property
    def only(self) -> ast.expr | None:
        """The value, if there is just one and it always holds."""
        match self.cases:
            case [StatedValue(value=value, guards=())]:
                return value
        return None

    @cached_property
    def argument(self) -> str:
        """The method's first argument after `cls` or `self`; empty if none, or one it changes."""
        match self.function:
            case ast.FunctionDef(args=ast.arguments(args=[_, ast.arg(arg=name), *_])) as function:
                return "" if name in _stored(function) else name
        return ""

    @property
    def cases_of_argument(self) -> list[StatedValue]:
        """The cases for an argument other than None."""
        is_none = f"{self.argument} is None"
        return [c for c in self.cases if all(ast.unparse(guard) != is_none for guard in c.guards)]

    @cached_property
    def text(self) -> str:
        """The statement in the source's words, without the conditions."""
        values = dict.fromkeys(ast.unparse(case.value) for case in self.cases)
        return f"{self._verb} {' or '.join(values) or 'nothing'}"

    @cached_property
    def text_in_full(self) -> str:
        """The statement in the source's words, each value with its new conditions.

        The negated conditions of earlier values are left out.
        """
        texts: list[str] = []
        failed: set[str] = set()
        for case in self.cases:
            new = [guard for guard in case.guards if ast.unparse(guard) not in failed]
            texts.append(where(ast.unparse(case.value), new))
            failed.update(ast.unparse(negated(guard)) for guard in case.guards)
        return f"{self._verb} {'; else '.join(texts) or 'nothing'}"

    @property
    def _verb(self) -> str:
        return f"{self.last.name} =" if self.function is None else f"{self.last.name}() returns"

    def resolve(self, value: ast.expr) -> Targets:
        """Resolve a name in one of the values, also one that a function around it binds."""
        module = self.owner.module
        scopes = [module.scope_of(function.body) for function in self._around]
        return self.index.resolve(value, module, scopes)

    def items(self, value: ast.expr) -> tuple[Item, ...] | None:
        """List the items of a list or a tuple; None where only running code knows them.

        Args:
            value: such as `[16, MultipleOf(64)]`, `list(SIZES)` or `(*NAMES, torch.float16)`.
        """
        try:
            return tuple(_items(self.index, Value(self.owner.module, value), self))
        except _UnknownError:
            return None

    @cached_property
    def locals(self) -> Scope:
        """The meanings of the names that the method binds once, and not as arguments."""
        if self.function is None:
            return {}
        stored = _stored(self.function)
        taken = {node.arg for node in ast.walk(self.function) if isinstance(node, ast.arg)}
        names = self.owner.module.scope_of(self.function.body).items()
        return {n: each for n, each in names if stored.count(n) <= 1 and n not in taken}

    def spelled_out(self, value: ast.expr) -> str:
        """Write a value; a local name that is bound once, to an expression, as that expression."""
        return ast.unparse(_SpelledOut(self.locals).visit(deepcopy(value)))

    def binds(self, name: str) -> bool:
        """Return whether a function around the values binds a name."""
        return any(
            name in _stored(function)
            or any(isinstance(node, ast.arg) and node.arg == name for node in ast.walk(function))
            for function in self._around
        )

    def reading_for(
        self, definition: ClassDef, origin: Origin, words: str, value: object = None
    ) -> Reading:
        """Return the reading of a class; the statement of a base is inherited."""
        is_inherited = self.owner is not definition
        return self.reading(Origin.INHERITED if is_inherited else origin, words, value)

    @property
    def _around(self) -> tuple[Function, ...]:
        functions = self.owner.functions
        return functions if self.function is None else (self.function, *functions)


def _stored(function: Function) -> list[str]:
    """List the names that a function assigns to, as often as it does."""
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def class_in(index: Index, modules: Sequence[str], name: str) -> ClassDef | None:
    """Find a class in the first module that has it; a problem names the first where none has."""
    found = (module for module in filter(None, map(index.module, modules)) if name in module.scope)
    home = next(found, None)
    return index.class_in(modules[0] if home is None else home.name, name)


class _SpelledOut(ast.NodeTransformer):
    def __init__(self, names: Scope) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        match self._names.get(node.id):
            case [Guarded(value=ast.expr() as value)]:
                return value
        return node


def finding(
    definition: ClassDef, answer: Answer, values: Values, *, about: str = "", loss: str = ""
) -> Finding:
    """Return the finding of an answer, with the values that the class may declare.

    A class declares no value that it only inherits, as the base's author need not have thought
    of it. It declares none at all where one of the values cannot be read.

    Args:
        definition: the class.
        answer: the nearest statement for it.
        values: the value of each case; None for one that cannot be read.
        about: the class that the words are about, if another one.
        loss: how the value differs from the words.
    """
    if any(value is None for _, value in values):
        values = ()
    distinct = list(dict.fromkeys(value for _, value in values))
    only = distinct[0] if len(distinct) == 1 else None
    words = answer.text if distinct else answer.text_in_full
    stated = Origin.CONDITIONAL if only is None else Origin.DECLARED
    words = f"{about and f'{about}: '}{words}{loss and f' ({loss})'}"
    reading = answer.reading_for(definition, stated, words, only)
    if answer.owner is not definition or not values:
        return Finding(reading=reading)
    if only is not None:
        return Finding(reading=reading, base=only)
    return conditional(reading, values)


def conditional(reading: Reading, values: Values) -> Finding:
    """Make the unconditional case the base, or else the last, where no other holds."""
    cases = [(condition(guards), value) for guards, value in values]
    always = next((number for number, (when, _) in enumerate(cases) if not when), -1)
    _, base = cases.pop(always)
    whens = [(Given(expression=when), value, reading.words) for when, value in cases]
    return Finding(reading=reading, base=base, conditions=whens)


class Lookup:
    """Finds the statements of classes; each class body is read once."""

    def __init__(self, classes: Classes, roots: Collection[ClassDef]) -> None:
        """Take the root classes, whose values are defaults and count as undeclared."""
        self.roots = frozenset(roots)
        self.classes = classes
        self.stated = cache(self._stated)

    def nearest(
        self, definition: ClassDef, name: str, *, after: ClassDef | None = None
    ) -> Answer | None:
        """Find the statement of a class, or of the nearest base or root that has one.

        Args:
            definition: the class.
            name: of an attribute or a method.
            after: the class whose method calls `super()`, if one does.
        """
        order = self.classes.ancestors(definition, after=after)
        return next((own[name] for own in map(self.stated, order) if name in own), None)

    def below_root(
        self, definition: ClassDef, name: str, *, after: ClassDef | None = None
    ) -> Answer | None:
        """Find the statement of a class or a base; None where only a root has one."""
        order = self.classes.ancestors(definition, after=after)
        below = (each for each in order if each not in self.roots)
        return next((own[name] for own in map(self.stated, below) if name in own), None)

    def worked_out(self, definition: ClassDef, name: str) -> Reading | None:
        """Read what the root's method answers for a class from other statements of it.

        Such as `cls.get_impl_cls().supports_dcp`. None where the root asks for nothing of the
        kind, or where the answer is that of the root of what it asks.
        """
        answer = self.nearest(definition, name)
        if answer is None or answer.owner not in self.roots or not answer.cases:
            return None
        asks = _ASKS.fullmatch(_GETS.sub(r"\1.\2", answer.spelled_out(answer.cases[0].value)))
        if asks is None:
            return None
        subject, getter = definition, None
        if asks["getter"]:
            getter = self.below_root(definition, asks["getter"])
            match getter.resolve(getter.only) if getter and getter.only else []:
                case [((), ClassDef() as subject)]:
                    pass
                case _:
                    return None
        asked = self.nearest(subject, asks["name"])
        if asked is None or not isinstance(asked.only, ast.Constant):
            return None
        is_own = asked.owner is subject
        if not is_own and self.nearest(subject, asks["name"], after=asked.owner) is None:
            return None
        value = not asked.only.value if asks["negated"] else asked.only.value
        words = f"{answer.text}; {asked.owner.name}: {asked.text}"
        if not is_own:
            return asked.reading(Origin.INHERITED, words, value)
        if getter is None or getter.owner is definition:
            return asked.reading(Origin.DECLARED, words, value)
        parent = getter.owner.name
        return replace(asked.reading(Origin.INHERITED, words, value), inherited_from=parent)

    def _stated(self, definition: ClassDef) -> Mapping[str, Answer]:
        """List the names that a class's body binds, and that its module sets on it later."""
        module, index = definition.module, self.classes.index
        path = definition.path.removeprefix(f"{module.name}.")
        found = [*definition.given, *statements(definition, module.body, path)]
        own = grouped((each.name, each) for each in found if each.operator is None)
        return {name: Answer(tuple(live_statements(each)), index) for name, each in own.items()}


class _UnknownError(Exception):
    """Only running code knows a value."""


def _items(index: Index, at: Value, local: Answer | None) -> Iterator[Item]:
    at, local = _followed(index, at, local)
    match at.node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for part in parts:
                yield from _of_part(index, replace(at, node=part), local)
        case ast.Call(func=ast.Name(id="list" | "tuple"), args=[inner], keywords=[]):
            yield from _items(index, replace(at, node=inner), local)
        case _:
            raise _UnknownError


def _of_part(index: Index, at: Value, local: Answer | None) -> Iterator[Item]:
    at, local = _followed(index, at, local)
    match at.node:
        case ast.Starred(value=inner):
            yield from _items(index, replace(at, node=inner), local)
        case ast.Constant(value=int() | str() as item) if not isinstance(item, bool):
            yield item
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            yield name
        case ast.Call(func=ast.Name(id="MultipleOf"), args=[ast.Constant(value=int() as base)]):
            yield f"{MULTIPLE_OF}{base}"
        case _:
            raise _UnknownError


def _followed(index: Index, at: Value, local: Answer | None) -> tuple[Value, Answer | None]:
    """Follow a name of the module; the value of a function's variable is unknown."""
    if not isinstance(at.node, ast.Name):
        return at, local
    if local is not None and local.binds(at.node.id):
        raise _UnknownError
    match index.resolve(at.node, at.module):
        case [((), Value() as target)]:
            return target, None
    raise _UnknownError


def windows_of(test: ast.expr, argument: str) -> Windows | None:
    """Read a test of the compute capability; None if it tests anything else too.

    Args:
        test: such as `capability.major in [9, 10]`.
        argument: the name of the capability in the test.
    """
    match test:
        case ast.Constant(value=True):
            return ANY
        case ast.BoolOp(op=ast.And(), values=tests):
            every = [windows_of(each, argument) for each in tests]
            known = [each for each in every if each is not None]
            return (reduce(overlap, known) or None) if len(known) == len(every) else None
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return _compared(ast.unparse(left), sign, right, argument)
    return None


def _compared(left: str, sign: ast.cmpop, right: ast.expr, argument: str) -> Windows | None:
    is_major = left == f"{argument}.major"
    if not is_major and left not in {argument, f"({argument}.major, {argument}.minor)"}:
        return None
    match sign, right:
        case ast.In(), ast.List(elts=values) | ast.Tuple(elts=values):
            bounds = [_version(value, is_major=is_major) for value in values]
        case ast.Eq() | ast.GtE() | ast.Gt() | ast.LtE() | ast.Lt(), _:
            bounds = [_version(right, is_major=is_major)]
        case _:
            return None
    starts = [bound for bound in bounds if bound is not None]
    if not starts or len(starts) < len(bounds):
        return None
    ends = [(first + 1, 0) if is_major else (first, second + 1) for first, second in starts]
    match sign:
        case ast.GtE() | ast.Gt():
            return (ComputeRange(starts[0] if isinstance(sign, ast.GtE) else ends[0]),)
        case ast.LtE() | ast.Lt():
            return (ComputeRange((0, 0), ends[0] if isinstance(sign, ast.LtE) else starts[0]),)
    return overlap(tuple(map(ComputeRange, starts, ends)), ANY)


def _version(value: ast.expr, *, is_major: bool) -> Version | None:
    """Read `9` of a major version, else `DeviceCapability(9, 0)` or `(9, 0)`."""
    match value:
        case ast.Constant(value=int(major)) if is_major:
            return major, 0
        case (
            ast.Call(
                func=ast.Name(id="DeviceCapability"),
                args=[ast.Constant(value=int(major)), ast.Constant(value=int(minor))],
                keywords=[],
            )
            | ast.Tuple(elts=[ast.Constant(value=int(major)), ast.Constant(value=int(minor))])
        ) if not is_major:
            return major, minor
    return None
