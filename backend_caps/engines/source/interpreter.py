"""Interprets functions of a source tree without importing it, where values may be unknown.

Where a condition is unknown, both branches run, and what either would change is joined with what
was there: a value that differs becomes unknown. An error that is raised in such a branch is
recorded as one that may be raised.

Names outside the tree are `External`; a table says what the known ones do. Nothing of the tree is
executed by Python: only functions of values, such as `len`, are called.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from backend_caps.engines.source.calls import NotFollowedError, Run, Store, may_declare
from backend_caps.engines.source.control_flow import nothing
from backend_caps.engines.source.imports import Imports
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.instances import make_members
from backend_caps.engines.source.records import NAMED_TUPLE, native_bases
from backend_caps.engines.source.traits import NO_TRAITS, Traits
from backend_caps.engines.source.values import (
    ClassValue,
    Descriptor,
    Frame,
    FunctionValue,
    Instance,
    Native,
    Perhaps,
    Unknown,
    is_enum,
)

_MOST_STEPS = 3_000_000
_FRAMES = 20_000
"""Python's frames; a call of the program takes some ten."""


class Interpreter(Imports):
    """Runs functions of a tree."""

    def __init__(self, index: Index, natives: Mapping[str, object]) -> None:
        """Start with nothing imported.

        Args:
            index: the tree.
            natives: what external names mean, and names of the tree that are replaced: a value,
                or a `Hook` that is called. Behind the name of an external class, `()` is what
                constructs it.
        """
        super().__init__(index, natives)
        self._steps = 0
        self._statements: Mapping[type[ast.stmt], Callable[[Any], Run]] = {
            **self.controlling(),
            ast.Expr: lambda node: self.evaluator(node.value),
            ast.Assign: self._assign,
            ast.AnnAssign: self._ann_assign,
            ast.AugAssign: self._aug_assign,
            ast.FunctionDef: lambda node: partial(self._define, node),
            ast.AsyncFunctionDef: lambda node: partial(self._define, node),
            ast.ClassDef: lambda node: partial(self._class, node),
            ast.Import: lambda node: partial(self._import, node),
            ast.ImportFrom: lambda node: partial(self._import_from, node),
            ast.Delete: lambda node: partial(self._delete, node),
            ast.Pass: lambda _node: nothing,
            ast.Global: lambda _node: nothing,  # `Traits` have it
            ast.Nonlocal: lambda _node: nothing,
        }

    def found(self, path: str) -> Native:
        """Return the value of a dotted name of the tree."""
        module, _, name = path.rpartition(".")
        return self.attribute(self.import_module(module), name)

    def call(self, function: Native, *args: Native, **named: Native) -> Native:
        """Call a function, a class or a method.

        Raises:
            Raised: the program raises an error.
            NotFollowedError: it goes on for too long, or too deep.
        """
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _FRAMES))
        try:
            return self.apply(function, args, named)
        finally:
            sys.setrecursionlimit(limit)

    def body(self, statements: Sequence[ast.stmt]) -> Run:
        """Return what runs statements, which are read when they run first: many never do."""
        if not statements:
            return nothing
        runs: list[tuple[Run, int]] = []

        def run(frame: Frame) -> None:
            if not runs:
                runs.extend((self._compiled(each), each.lineno) for each in statements)
            self._steps += len(runs)
            if self._steps > _MOST_STEPS:
                raise NotFollowedError(f"more than {_MOST_STEPS} statements", self.at)
            module = frame.module
            for each, line in runs:
                self._place = (module, line)
                each(frame)

        return run

    def _compiled(self, node: ast.stmt) -> Run:
        make = self._statements.get(type(node))
        if make is None:
            why = f"a statement {type(node).__name__}"
            return lambda frame: self._forget([node], frame, why)
        return make(node)

    def _forget(self, body: Iterable[ast.stmt], frame: Frame, why: str) -> None:
        """Make unknown the names that statements bind."""
        for statement in body:
            for node in ast.walk(statement):
                name = node.id if isinstance(node, ast.Name) else None
                if name is not None and isinstance(getattr(node, "ctx", None), ast.Store):
                    frame.names[name] = Unknown(why)
            if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                frame.names[statement.name] = Unknown(why)

    def _assign(self, node: ast.Assign) -> Run:
        value_of, stores = self.evaluator(node.value), [*map(self.storer, node.targets)]

        def run(frame: Frame) -> None:
            value = value_of(frame)
            for store in stores:
                store(value, frame)

        return run

    def _ann_assign(self, node: ast.AnnAssign) -> Run:
        target = node.target
        value_of = None if node.value is None else self.evaluator(node.value)
        store = self.storer(target)

        def run(frame: Frame) -> None:
            if isinstance(target, ast.Name) and frame.is_class_body and frame.owner:
                frame.owner.annotations[target.id] = (node.annotation, frame)
            if value_of is not None:
                store(value_of(frame), frame)

        return run

    def _aug_assign(self, node: ast.AugAssign) -> Run:
        before = self.evaluator(ast.copy_location(_loaded(node.target), node))
        by, store, op = self.evaluator(node.value), self.storer(node.target), node.op

        def run(frame: Frame) -> None:
            now = before(frame)
            store(self.operated(op, now, by(frame)), frame)

        return run

    def storer(self, target: ast.expr) -> Store:
        """Return what assigns to a target."""
        match target:
            case ast.Name(id=name):
                return self._name_storer(name)
            case ast.Attribute(value=value, attr=name):
                owner = self.evaluator(value)
                return lambda value, frame: self.set_attribute(owner(frame), name, value)
            case ast.Subscript(value=value, slice=key):
                of, at = self.evaluator(value), self.evaluator(key)
                return lambda value, frame: self.set_item(of(frame), at(frame), value)
            case ast.Starred(value=inner):
                return self.storer(inner)
        assert isinstance(target, ast.Tuple | ast.List), "no other target is left"
        targets, stores = target.elts, [*map(self.storer, target.elts)]
        has_star = any(isinstance(each, ast.Starred) for each in targets)

        def unpack(value: Native, frame: Frame) -> None:
            is_whole = type(value) is tuple and len(value) == len(stores) and not has_star
            own = value if is_whole and Perhaps not in map(type, value) else None
            for store, each in zip(stores, own or self._unpacked(targets, value), strict=True):
                store(each, frame)

        return unpack

    def _name_storer(self, name: str) -> Store:
        def store(value: Native, frame: Frame) -> None:
            names = self._scope_of(name, frame)
            level = frame.level if names is frame.names else 0
            if len(self._maybe) > level:
                # One that a branch alone binds is used where that branch ran.
                value = self._weakly(names.get(name, value), value, level)
            names[name] = value

        return store

    def _scope_of(self, name: str, frame: Frame) -> dict[str, Native]:
        """Return the names that an assignment changes: a function's, or what it declares."""
        traits = frame.traits
        if name in traits.global_names:
            return frame.module.names
        if name in traits.nonlocal_names:
            outer = frame.outer
            while outer is not None and name not in outer.names:
                outer = outer.outer
            return frame.names if outer is None else outer.names
        return frame.names

    def _unpacked(self, targets: Sequence[ast.expr], value: Native) -> Sequence[Native]:
        values: Sequence[Native] | Unknown = self.iterated(value)
        stars = [at for at, each in enumerate(targets) if isinstance(each, ast.Starred)]
        if isinstance(values, Unknown):
            return [values] * len(targets)
        if stars:
            after = len(targets) - stars[0] - 1
            values = [
                *values[: stars[0]],
                values[stars[0] : len(values) - after],
                *values[len(values) - after :],
            ]
        if len(values) != len(targets):
            raise self.raised(ValueError(f"cannot unpack {len(values)} into {len(targets)}"))
        return values

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, frame: Frame) -> None:
        function: Native = self.function(node, node.name, frame)
        for decorator in reversed(node.decorator_list):
            function = self.apply(self.value(decorator, frame), (function,), {})
        names = self._scope_of(node.name, frame)
        names[node.name] = function

    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, name: str, frame: Frame
    ) -> FunctionValue:
        """Make a function of its definition."""
        arguments = node.args
        named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        return FunctionValue(
            name=name,
            node=node,
            frame=frame,
            call=self._run_function,
            defaults=[self.value(each, frame) for each in arguments.defaults],
            keyword_defaults={a.arg: self.value(v, frame) for a, v in named if v is not None},
            owner=frame.owner if frame.is_class_body else None,
        )

    def _class(self, node: ast.ClassDef, frame: Frame) -> None:
        stated = (self.value(each, frame) for each in node.bases)
        bases = tuple(own for each in stated for own in native_bases(each))
        keywords = {each.arg: self.value(each.value, frame) for each in node.keywords if each.arg}
        made = ClassValue(node.name, bases, {}, frame.module, node, keywords=keywords)
        made.is_enum = any(is_enum(each) for each in made.line)
        made.is_tuple = NAMED_TUPLE in made.line
        made.is_record = made.descends("msgspec.Struct") or made.is_tuple
        level = len(self._maybe)
        traits = Traits.of(node.body) if may_declare(frame.module.module, node) else NO_TRAITS
        body = Frame(frame.module, made.names, frame, made, None, level, traits, is_class_body=True)
        self.body(node.body)(body)
        self._named_by(made)
        if made.is_enum:
            make_members(made)
        value: Native = made
        for decorator in reversed(node.decorator_list):
            value = self.apply(self.value(decorator, frame), (value,), {})
        frame.names[node.name] = value

    def _named_by(self, made: ClassValue) -> None:
        """Call `__set_name__` of a class's values, and `__init_subclass__` of its bases."""
        for name, value in list(made.names.items()):
            if isinstance(value, Instance) and (setter := value.cls.lookup("__set_name__")):
                self.apply(setter, (value, made, name), {})
        hook = made.lookup("__init_subclass__", after=made)
        if hook is not None:
            function = hook.function if isinstance(hook, Descriptor) else hook
            self.apply(function, (made,), made.keywords)

    def _delete(self, node: ast.Delete, frame: Frame) -> None:
        for target in node.targets:
            match target:
                case ast.Name(id=name):
                    frame.names.pop(name, None)
                case ast.Attribute(value=owner, attr=name):
                    held = self.value(owner, frame)
                    if isinstance(held, Instance):
                        held.attributes.pop(name, None)
                case ast.Subscript(value=owner, slice=key):
                    held, at = self.value(owner, frame), self.value(key, frame)
                    if isinstance(held, dict | list) and not isinstance(at, Unknown):
                        del held[at]


def _loaded(target: ast.expr) -> ast.expr:
    """Return the expression that reads what a target assigns to."""
    match target:
        case ast.Attribute(value=owner, attr=name):
            return ast.Attribute(value=owner, attr=name, ctx=ast.Load())
        case ast.Subscript(value=owner, slice=key):
            return ast.Subscript(value=owner, slice=key, ctx=ast.Load())
    return ast.Name(id=ast.unparse(target), ctx=ast.Load())
