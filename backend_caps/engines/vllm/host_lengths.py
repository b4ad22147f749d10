"""What a builder of vLLM's metadata reads of the sequence lengths on the host.

vLLM declares nothing about it: a builder takes from the batch what it needs. So the body of
`build` is followed, with every function of vLLM's that it hands the batch or its lengths on to.
What lies outside is not: a library that copies lengths itself, and the forward pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeGuard

from backend_caps.capability.backend import Reading
from backend_caps.capability.kind import UNDECLARED
from backend_caps.capability.provenance import Origin
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.engines.reading import Finding
from backend_caps.engines.source import guards as of_guards
from backend_caps.engines.source.classes import Classes
from backend_caps.engines.source.guards import Function, Guards, negated
from backend_caps.engines.source.index import External, FunctionDef
from backend_caps.engines.source.module import ClassDef
from backend_caps.engines.vllm.lookup import class_in

_MODULES = ("vllm.v1.attention.backend", "vllm.v1.attention.backends.utils")
"""The module of the batch, and where it is up to 0.13."""
_LONGEST = "max_seq_len"
_BATCH, _PARAMETER = "CommonAttentionMetadata", "common_attn_metadata"
_ENTRIES = ("build", "build_for_drafting")
_LENGTHS = frozenset({"seq_lens", "compute_num_computed_tokens"})
"""The batch's lengths on the device, and its method that computes others of them."""
_ON_HOST: Mapping[str, HostSeqLens] = {
    "seq_lens_cpu": HostSeqLens.EXACT,
    "_seq_lens_cpu": HostSeqLens.EXACT,
    "num_computed_tokens_cpu": HostSeqLens.EXACT,
    "_num_computed_tokens_cpu": HostSeqLens.EXACT,
    "seq_lens_cpu_upper_bound": HostSeqLens.UPPER_BOUND,
    "dcp_local_seq_lens_cpu_upper_bound": HostSeqLens.UPPER_BOUND,
}
"""What the batch has on the host, in one release or another, with the level of a read."""
_OF_BATCH = frozenset({"copy", "replace", "unpadded"})
"""The methods and functions that return a batch with other values."""
_COPIES = frozenset({"cpu", "item", "numpy", "tolist"})
_MOST_NAMED = 3
"""As many conditions of one builder are named."""
_NUMBERS = frozenset({"bool", "float", "int"})
_OF_SHAPES = frozenset({"data_ptr", "dim", "element_size", "numel", "size", "stride"})
"""Methods of a tensor that tell nothing of its values."""


class _Kind(Enum):
    BATCH = auto()
    LENGTHS = auto()
    """On the device."""
    BOUND = auto()
    """On the host."""


_Bound = Mapping[str, _Kind]
"""What a function's names hold."""


@dataclass(frozen=True, slots=True)
class _Read:
    """One place at which lengths are read on the host."""

    level: HostSeqLens
    words: str
    at: str
    conditions: frozenset[str]


def host_lengths(classes: Classes, builder: ClassDef, roots: Iterable[ClassDef]) -> Finding | None:
    """Find what a builder reads of lengths on the host; None where it has no `build` of its own.

    Args:
        classes: of vLLM's source.
        builder: the builder's class.
        roots: the classes whose methods are only to be overridden.
    """
    below = frozenset(roots)
    followed = _Followed(classes, builder)
    for name in _ENTRIES:
        owner = classes.definer(builder, name)
        if owner is not None and owner not in below:
            followed.enter(owner, name)
    if not followed.is_entered:
        return None
    level = max((each.level for each in followed.reads), default=HostSeqLens.NONE)
    if followed.lost and level is not HostSeqLens.EXACT:
        at, words = followed.lost[0]
        text = f"{builder.name}: {words}, which takes the batch, is not found in the source"
        reading = Reading(origin=Origin.NOT_KNOWN, words=text, declared_at=at)
        return Finding(reading=reading, base=UNDECLARED)
    deciding = _deciding([each for each in followed.reads if each.level is level])
    more = len(deciding) - _MOST_NAMED
    named = [each.words for each in deciding[:_MOST_NAMED]]
    named += [f"under {more} other conditions"] if more > 0 else []
    words = "; or ".join(named) or "nothing of the lengths on the host"
    reading = Reading(
        origin=Origin.DECLARED,
        words=f"{builder.name}: build() reads {words}",
        value=level,
        declared_at=deciding[0].at if deciding else builder.at,
    )
    return Finding(reading=reading, base=level)


def _deciding(reads: Sequence[_Read]) -> Sequence[_Read]:
    """Choose the reads that are named: those that no other's conditions imply."""
    by_conditions = {each.conditions: each for each in reversed(reads)}
    distinct = reversed(by_conditions.items())
    return [each for held, each in distinct if not any(other < held for other in by_conditions)]


def longest_length(classes: Classes) -> Finding | None:
    """Find the bound of the longest length that each batch has; None where it has none."""
    batch = class_in(classes.index, _MODULES, _BATCH)
    fields = [] if batch is None else [n for n in batch.node.body if isinstance(n, ast.AnnAssign)]
    bound = next((each for each in fields if ast.unparse(each.target) == _LONGEST), None)
    if batch is None or bound is None:
        return None
    at = batch.module.at(bound)
    words = f"{_BATCH} has {_LONGEST}"
    reading = Reading(origin=Origin.DECLARED, words=words, value=True, declared_at=at)
    return Finding(reading=reading, base=True)


class _Followed:
    """The functions behind a builder's `build`, each followed once for what it is called with."""

    def __init__(self, classes: Classes, builder: ClassDef) -> None:
        self.classes, self.builder = classes, builder
        self.reads: list[_Read] = []
        self.lost: list[tuple[str, str]] = []
        """Calls that take the batch and are not found, with their places."""
        self.is_entered = False
        self._seen: set[tuple[Function, frozenset[tuple[str, _Kind]], str]] = set()
        self._running: list[Function] = []

    def enter(self, owner: ClassDef, name: str) -> None:
        """Follow a method that vLLM's runner calls with a batch."""
        function = owner.methods[name]
        bound = {
            each.arg: _Kind.BATCH
            for each in _parameters(function)
            if each.arg == _PARAMETER
            or (each.annotation and _BATCH in ast.unparse(each.annotation))
        }
        self.is_entered = self.is_entered or bool(bound)
        self.follow(FunctionDef(owner.module, function, owner), bound)

    def follow(self, function: FunctionDef, bound: _Bound, guards: Guards = ()) -> None:
        """Follow a function whose parameters hold these, where it is called under conditions."""
        held = frozenset(bound.items())
        key = (function.node, held, of_guards.condition(guards))
        if {key, (function.node, held, "")} & self._seen or function.node in self._running:
            return
        self._seen.add(key)
        self._running.append(function.node)
        _Body(self, function, bound, guards).follow()
        self._running.pop()


class _Body(ast.NodeVisitor):
    """The body of a function, in the order of its statements."""

    def __init__(
        self, around: _Followed, function: FunctionDef, bound: _Bound, guards: Guards
    ) -> None:
        self._around, self._function = around, function
        self._bound = dict(bound)
        self._outer = guards
        """The conditions under which the function is called."""
        self._guards: Guards = ()
        self._num_branches = 0
        """How many branches are around what is visited."""
        self._scopes = [function.module.scope_in(function.node)]

    def follow(self) -> None:
        self._statements(self._function.node.body)

    def _statements(self, body: Sequence[ast.AST]) -> None:
        """Visit statements in order; those behind a branch that returns run where it does not."""
        outer = self._guards
        for statement in body:
            self.visit(statement)
            match statement:
                case ast.If(test=test, body=[*_, ast.Return()], orelse=[]) if not self._has_bound(
                    test
                ):
                    self._guards = (*self._guards, negated(test))
        self._guards = outer

    def visit_If(self, node: ast.If) -> None:
        """Visit each branch under its condition, but what a batch without a bound would take."""
        self._branches(node.test, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Visit them as those of a statement."""
        self._branches(node.test, [node.body], [node.orelse])

    def _branches(self, test: ast.expr, body: Sequence[ast.AST], orelse: Sequence[ast.AST]) -> None:
        self.visit(test)
        if self._has_bound(test):  # vLLM's runner gives each batch its bound.
            self._statements(body if isinstance(test.ops[0], ast.IsNot) else orelse)
            return
        self._under(test, body)
        self._under(negated(test), orelse)

    def _has_bound(self, test: ast.expr) -> TypeGuard[ast.Compare]:
        """Return whether a condition asks if the batch has its bound."""
        match test:
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[_]):
                return self._kind(left) is _Kind.BOUND
        return False

    def _under(self, guard: ast.expr, nodes: Sequence[ast.AST]) -> None:
        outer = self._guards
        self._guards = (*outer, guard)
        self._num_branches += 1
        self._statements(nodes)
        self._num_branches -= 1
        self._guards = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        """Visit the value, and keep what the names hold from then on."""
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, node.value)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if not isinstance(target, ast.Name):
            self.visit(target)
            return
        kind = self._kind(value)
        if kind is not None:
            self._bound[target.id] = kind
        elif not self._num_branches:  # another branch may have left what it held
            self._bound.pop(target.id, None)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Leave out a comparison with None: it reads no lengths."""
        if not any(isinstance(each, ast.Is | ast.IsNot) for each in node.ops):
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Keep a read of what the batch has on the host."""
        level = _ON_HOST.get(node.attr)
        if level is not None and self._kind(node.value) is _Kind.BATCH:
            self._keep(level, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Keep a copy of lengths to the host, and follow a call that is handed them."""
        if self._copies(node):
            self._keep(HostSeqLens.EXACT, node)
        else:
            self._call(node)
        self.generic_visit(node)

    def _keep(self, level: HostSeqLens, node: ast.expr) -> None:
        at = self._function.module.at(node)
        guards = (*self._outer, *self._guards)
        held = frozenset(map(ast.unparse, of_guards.conditions(guards)))
        words = of_guards.where(ast.unparse(node), guards)
        self._around.reads.append(_Read(level, words, at, held))

    def _copies(self, node: ast.Call) -> bool:
        """Return whether a call needs the values of lengths on the host."""
        match node.func:
            case ast.Attribute(value=value, attr=name) if self._is_lengths(value):
                return name in _COPIES or (name == "to" and "'cpu'" in ast.unparse(node))
            case ast.Name(id=name) if name in _NUMBERS:
                return any(map(self._is_lengths, node.args))
        return False

    def _is_lengths(self, value: ast.expr) -> bool:
        return self._kind(value) is _Kind.LENGTHS

    def _call(self, node: ast.Call) -> None:
        given = [*node.args, *(each.value for each in node.keywords)]
        kinds = {self._kind(each) for each in given}
        if kinds <= {None}:
            return
        callees = [*self._callees(node.func)]
        for function in callees:
            if isinstance(function, FunctionDef):
                guards = (*self._outer, *self._guards)
                self._around.follow(function, self._handed(node, function), guards)
        if not callees and _Kind.BATCH in kinds:
            self._around.lost.append(
                (self._function.module.at(node), f"{ast.unparse(node.func)}()")
            )

    def _callees(self, func: ast.expr) -> Iterator[FunctionDef | ClassDef | External]:
        """List what a call may call; nothing where only running code knows it."""
        classes, owner = self._around.classes, self._function.owner
        found: ClassDef | None = None
        match func:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if owner is not None:
                found = classes.definer(self._around.builder, name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if owner:
                found = classes.definer(self._around.builder, name, after=owner)
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr=part), attr=name
            ):
                for made in self._made(part):
                    owner = classes.definer(made, name)
                    if owner is not None:
                        yield FunctionDef(owner.module, owner.methods[name], owner)
            case ast.Attribute(value=value, attr=name) if self._kind(value) is not None:
                yield External(name)  # a method of the batch or of a tensor
            case _:
                module = self._function.module
                for _, target in classes.index.resolve(func, module, self._scopes):
                    if isinstance(target, FunctionDef | ClassDef | External):
                        yield target
        if found is not None:
            yield FunctionDef(found.module, found.methods[name], found)

    def _made(self, name: str) -> Iterator[ClassDef]:
        """List the classes whose instance a constructor keeps under a name."""
        classes = self._around.classes
        for owner in classes.ancestors(self._around.builder):
            constructor = owner.methods.get("__init__")
            for node in ast.walk(constructor) if constructor else ():
                match node:
                    case ast.Assign(targets=[ast.Attribute(attr=own)], value=ast.Call(func=func)):
                        found = classes.index.resolve(func, owner.module) if own == name else []
                        yield from (each for _, each in found if isinstance(each, ClassDef))

    def _handed(self, node: ast.Call, function: FunctionDef) -> _Bound:
        """Map the parameters of a function to what a call gives them."""
        names = [each.arg for each in _parameters(function.node)]
        if function.owner is not None and "staticmethod" not in _decorators(function.node):
            names = names[1:]
        by_place = zip(names, node.args, strict=False)
        by_name = ((each.arg, each.value) for each in node.keywords)
        given = [(name, self._kind(value)) for name, value in (*by_place, *by_name)]
        return {name: kind for name, kind in given if name is not None and kind is not None}

    def _kind(self, value: ast.expr) -> _Kind | None:
        """Return what an expression holds, as far as it matters here."""
        match value:
            case ast.Name(id=name):
                return self._bound.get(name)
            case ast.Attribute(value=inner, attr=name):
                return self._part(name) if self._kind(inner) is _Kind.BATCH else None
            case (
                ast.Subscript(value=inner) | ast.UnaryOp(operand=inner) | ast.NamedExpr(value=inner)
            ):
                return self._kind(inner)
            case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
                return self._kind(left) or self._kind(right)
            case ast.Call() if not self._copies(value):
                return self._result(value)
        return None

    def _part(self, name: str) -> _Kind | None:
        """Return what the batch has under a name."""
        if name in _LENGTHS:
            return _Kind.LENGTHS
        return _Kind.BOUND if _ON_HOST.get(name) is HostSeqLens.UPPER_BOUND else None

    def _result(self, node: ast.Call) -> _Kind | None:
        """Return what a call gives: another batch, or lengths that are computed of others."""
        match node.func:
            case ast.Attribute(value=inner, attr=name) if self._is_lengths(inner):
                return None if name in _OF_SHAPES else _Kind.LENGTHS
            case ast.Attribute(value=inner, attr=name) if self._kind(inner) is _Kind.BATCH:
                return _Kind.BATCH if name in _OF_BATCH else self._part(name)
            case ast.Name(id="len"):
                return None
            case ast.Name(id=name) | ast.Attribute(attr=name):
                kinds = {self._kind(each) for each in node.args}
                if _Kind.BATCH in kinds and name in _OF_BATCH:
                    return _Kind.BATCH
                return _Kind.LENGTHS if kinds == {_Kind.LENGTHS} else None
        return None


def _parameters(function: Function) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _decorators(function: Function) -> set[str]:
    return {ast.unparse(each) for each in function.decorator_list}
