"""Calls in an interpreted program: of its functions, its classes, and of native functions."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from backend_caps.engines.source.builtin_functions import SPECIAL, listed
from backend_caps.engines.source.instances import Instances
from backend_caps.engines.source.uncertainty import all_joined, is_open, joined, merge, short
from backend_caps.engines.source.values import (
    ClassValue,
    External,
    Frame,
    FunctionValue,
    Hook,
    Instance,
    Method,
    Native,
    Perhaps,
    Raised,
    Unknown,
)

_DEEPEST = 120
_TAKES_UNKNOWN = (list, tuple, dict, set, frozenset, enumerate, zip, reversed, print, type, repr)
"""Native functions that are called with values that are not known."""


class Returned(Exception):  # noqa: N818 - control flow of the interpreted program
    """A function returns."""

    def __init__(self, value: Native) -> None:
        super().__init__()
        self.value = value


class Broken(Exception):  # noqa: N818 - control flow
    """A loop ends."""


class Continued(Exception):  # noqa: N818 - control flow
    """A round of a loop ends."""


class NotFollowedError(Exception):
    """The program cannot be followed: it goes on for too long or too deep, or our code fails."""

    def __init__(self, words: str, at: str) -> None:
        super().__init__(words)
        self.at = at
        """The line that cannot be followed, as `file:line`."""


class Calls(Instances):
    """Calls what the program calls."""

    def __init__(self, natives: Mapping[str, object]) -> None:
        """Take what external names mean, and names of the program that are replaced."""
        super().__init__(natives)
        self._depth = 0
        self._known_traits: dict[ast.AST, Traits] = {}

    @abstractmethod
    def run_body(self, body: Iterable[ast.stmt], frame: Frame) -> None:
        """Run statements."""

    def apply(
        self, function: Native, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Call a function, a class or a method."""
        match function:
            case FunctionValue():
                return self._run_function(function, args, named)
            case Method(function=inner, owner=owner):
                return self.apply(inner, (owner, *args), named)
            case Hook(run=run):
                return run(self, args, named)
            case ClassValue():
                return self.construct(function, args, named)
            case Instance():
                call = function.cls.lookup("__call__")
                return (
                    Unknown(f"{function}()")
                    if call is None
                    else self.apply(call, (function, *args), named)
                )
            case Unknown() | External():
                return Unknown(f"{function}()")
        if not callable(function):
            raise self.raised(TypeError(f"{short(function)} is not callable"))
        return self._native(function, args, named)

    def _native(
        self, function: Callable[..., Native], args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        special = SPECIAL.get(function)
        if special is not None:
            return self._fresh(special(self, args, named))
        owner = getattr(function, "__self__", None)
        weak = isinstance(owner, list | dict | set) and len(self._maybe) > self._level(owner)
        if weak and _changes(function):
            _change_weakly(owner, function, args, named)
            return Unknown(f"{function.__name__}(...)")
        is_ours = type(owner).__module__.startswith("backend_caps.")  # such as a parser
        takes = function in _TAKES_UNKNOWN or is_ours or isinstance(owner, list | dict | set)
        if not takes and is_open([*args, *named.values()]):
            return Unknown(f"{getattr(function, '__name__', function)}(...)")
        try:
            if isinstance(owner, dict) and function.__name__ == "update":
                merge(owner, dict(*args, **named))
                return None
            result = function(*args, **named)
            if isinstance(result, Perhaps) and isinstance(owner, dict):  # of `get`
                result = joined(result.value, args[1] if len(args) > 1 else None)
            return self._fresh(listed(result))
        except (Raised, NotFollowedError, Returned, Broken, Continued):
            raise
        except (Exception, SystemExit) as error:
            if is_ours:  # our own code cannot do it, which says nothing of the program
                raise NotFollowedError(f"{type(error).__name__}: {error}", self.at) from error
            raise self.raised(error) from error

    def _run_function(
        self, function: FunctionValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        replaced = self.natives.get(f"{function.frame.module.module.name}.{function.name}")
        if isinstance(replaced, Hook) and function.owner is None:
            return replaced.run(self, args, named)
        if self._depth > _DEEPEST:
            raise NotFollowedError(f"calls nest more than {_DEEPEST} deep", self.at)
        names = self._arguments(function, args, named)
        outer = function.frame if not function.frame.is_class_body else function.frame.outer
        outer = None if outer is not None and outer.names is outer.module.names else outer
        level = len(self._maybe)
        frame = Frame(function.frame.module, names, outer, function.owner, function, level)
        self._depth += 1
        place = self._place
        try:
            result = self._result(function, frame)
        except Raised as error:
            if len(self._maybe) <= level:
                raise
            self.note(error.message, error.at)  # it may have returned before
            result = frame.returned[-1] if frame.returned else Unknown(function.name)
        finally:
            self._depth -= 1
            self._place = place
            del self._maybe[level:]
        return all_joined([*frame.returned, result])

    def _result(self, function: FunctionValue, frame: Frame) -> Native:
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, frame)
        result: Native = None
        try:
            self.run_body(function.node.body, frame)
        except Returned as end:
            result = end.value
        return frame.yielded if self.traits(function.node).yields else result

    def traits(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Traits:
        """Return what a function's own statements have."""
        found = self._known_traits.get(node)
        if found is None:
            found = self._known_traits[node] = Traits.of(node)
        return found

    def _arguments(
        self, function: FunctionValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> dict[str, Native]:
        spec = function.node.args
        positional = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        names: dict[str, Native] = dict(zip(positional, args, strict=False))
        defaults = zip(reversed(positional), reversed(function.defaults), strict=False)
        allowed = {*positional, *(each.arg for each in spec.kwonlyargs)}
        rest = {name: value for name, value in named.items() if name not in allowed}
        names |= {name: value for name, value in named.items() if name in allowed}
        for name, default in [*defaults, *function.keyword_defaults.items()]:
            names.setdefault(name, default)
        if spec.vararg is not None:
            names[spec.vararg.arg] = tuple(args[len(positional) :])
        if spec.kwarg is not None:
            names[spec.kwarg.arg] = rest
        missing = sorted(allowed - names.keys())
        if (
            missing
            or (rest and spec.kwarg is None)
            or (len(args) > len(positional) and spec.vararg is None)
        ):
            words = f"{function.name}() takes other arguments: {missing or sorted(rest)}"
            raise self.raised(TypeError(words))
        return names


def _changes(function: Callable[..., Native]) -> bool:
    return getattr(function, "__name__", "") in _CHANGES


def _change_weakly(
    owner: Native,
    function: Callable[..., Native],
    args: Sequence[Native],
    named: Mapping[str, Native],
) -> None:
    """Change a container as a call does that may not run."""
    may_be = Perhaps(f"{function.__name__}(...) may have run")
    if isinstance(owner, dict):
        given = args[0] if args else named
        keys = given if function.__name__ == "update" and isinstance(given, Mapping) else owner
        if keys is owner:
            owner.update(dict.fromkeys([*owner, may_be], may_be))
        else:
            own = {key: owner.get(key, Perhaps(may_be.why, given[key])) for key in keys}
            owner.update({k: joined(own[k], given[k]) if k in owner else own[k] for k in keys})
        return
    if function.__name__ not in _ADDS:
        owner.clear()
    (owner.append if isinstance(owner, list) else owner.add)(may_be)


_ADDS = frozenset({"append", "extend", "insert", "add", "update"})
_CHANGES = _ADDS | {"remove", "pop", "clear", "sort", "reverse", "setdefault", "discard", "popitem"}
"""Methods that change a list, a set or a mapping."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a function's own statements, without those of inner functions, have."""

    yields: bool
    nonlocals: frozenset[str]

    @classmethod
    def of(cls, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Traits:
        """Read a function."""
        yields, nonlocals = False, set[str]()
        found: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else [*node.body]
        while found:
            each = found.pop()
            yields = yields or isinstance(each, ast.Yield | ast.YieldFrom)
            if isinstance(each, ast.Nonlocal):
                nonlocals.update(each.names)
            if not isinstance(each, (*_SCOPES,)):
                found.extend(ast.iter_child_nodes(each))
        return cls(yields, frozenset(nonlocals))


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
