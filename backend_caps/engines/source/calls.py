"""Calls in an interpreted program: of its functions, its classes, and of native functions."""

from __future__ import annotations

import ast
from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from backend_caps.engines.source.builtin_functions import SPECIAL, listed
from backend_caps.engines.source.instances import Instances
from backend_caps.engines.source.module import Module
from backend_caps.engines.source.traits import NO_TRAITS, Traits
from backend_caps.engines.source.uncertainty import (
    all_joined,
    has_unknown,
    is_open,
    joined,
    merge,
    short,
)
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


Evaluate: TypeAlias = Callable[[Frame], Native]
"""Evaluates an expression."""
Run: TypeAlias = Callable[[Frame], None]
"""Runs a statement, or several."""
Store: TypeAlias = Callable[[Native, Frame], None]
"""Assigns a value to a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A function's definition, read once for all of its calls."""

    run: Callable[[Frame], Native]
    traits: Traits
    positional: tuple[str, ...]
    allowed: frozenset[str]
    """The names of all arguments but `*args` and `**kwargs`."""
    rest: str | None
    """The name of `*args`."""
    named_rest: str | None
    """The name of `**kwargs`."""
    replaced: Hook | None
    """What runs in its place."""


class Calls(Instances):
    """Calls what the program calls."""

    def __init__(self, natives: Mapping[str, object]) -> None:
        """Take what external names mean, and names of the program that are replaced."""
        super().__init__(natives)
        self._depth = 0
        self._around: Callable[[Native], None] | None = None
        """What runs where the context manager yields that is called next."""
        self._codes: dict[ast.AST, Code] = {}

    @abstractmethod
    def body(self, statements: Sequence[ast.stmt]) -> Run:
        """Return what runs statements."""

    @abstractmethod
    def evaluator(self, node: ast.expr) -> Evaluate:
        """Return what evaluates an expression."""

    @abstractmethod
    def storer(self, target: ast.expr) -> Store:
        """Return what assigns to a target."""

    def apply(
        self, function: Native, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        """Call a function, a class or a method."""
        if type(function) is Method:
            return self.apply(function.function, (function.owner, *args), named)
        if type(function) is FunctionValue:
            return self._run_function(function, args, named)
        match function:
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
                made = self.natives.get(f"{function}()")
                if isinstance(made, Hook):
                    return made.run(self, args, named)
                return Unknown(f"{function}()")
        if not callable(function):
            raise self.raised(TypeError(f"{short(function)} is not callable"))
        return self._native(function, args, named)

    def _native(
        self, function: Callable[..., Native], args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        special = SPECIAL.get(function)
        if special is not None:
            return self._made(function, special(self, args, named))
        owner = getattr(function, "__self__", None)
        weak = isinstance(owner, list | dict | set) and len(self._maybe) > self._level(owner)
        if weak and _changes(function):
            _change_weakly(owner, function, args, named)
            return Unknown(f"{function.__name__}(...)")
        is_ours = type(owner).__module__.startswith("backend_caps.")  # such as a parser
        takes = function in _TAKES_UNKNOWN or is_ours or isinstance(owner, list | dict | set)
        is_lost = getattr(function, "__name__", "") in _SEARCHES and has_unknown([owner, *args])
        if is_lost or (not takes and is_open([*args, *named.values()])):
            return Unknown(f"{getattr(function, '__name__', function)}(...)")
        try:
            if type(owner) is dict and function.__name__ == "update":
                merge(owner, dict(*args, **named))
                return None
            result = function(*args, **named)
            if isinstance(result, Perhaps) and isinstance(owner, dict):  # of `get`
                result = joined(result.value, args[1] if len(args) > 1 else None)
            return self._made(function, listed(result))
        except (Raised, NotFollowedError, Returned, Broken, Continued):
            raise
        except (Exception, SystemExit) as error:
            if is_ours:  # our own code cannot do it, which says nothing of the program
                raise NotFollowedError(f"{type(error).__name__}: {error}", self.at) from error
            if is_open([*args, *named.values()]):
                return Unknown(f"{getattr(function, '__name__', function)}(...)")
            raise self.raised(error) from error

    def _made(self, function: Callable[..., Native], result: Native) -> Native:
        """Record what a native function makes; what it finds was made before."""
        is_found = getattr(function, "__name__", "") in _FINDS
        return result if is_found else self._fresh(result)

    def _run_function(
        self, function: FunctionValue, args: Sequence[Native], named: Mapping[str, Native]
    ) -> Native:
        code = self._codes.get(function.node)
        if code is None:
            code = self._codes[function.node] = self._code_of(function)
        if code.replaced is not None:
            return code.replaced.run(self, args, named)
        if self._depth > _DEEPEST:
            raise NotFollowedError(f"calls nest more than {_DEEPEST} deep", self.at)
        names = self._arguments(function, code, args, named)
        outer = function.frame if not function.frame.is_class_body else function.frame.outer
        outer = None if outer is not None and outer.names is outer.module.names else outer
        level = len(self._maybe)
        module, owner = function.frame.module, function.owner
        frame = Frame(module, names, outer, owner, function, level, code.traits)
        frame.around, self._around = self._around, None
        self._depth += 1
        place = self._place
        try:
            result = _result(code, frame)
        except Raised as error:
            if len(self._maybe) <= level:
                raise
            self.note(error)  # it may have returned before
            result = frame.returned.pop() if frame.returned else Unknown(function.name)
        finally:
            self._depth -= 1
            self._left = function.name, self._place
            self._place = place
            del self._maybe[level:]
        return all_joined([*frame.returned, result]) if frame.returned else result

    def _code_of(self, function: FunctionValue) -> Code:
        """Read a function's definition."""
        node, module = function.node, function.frame.module.module
        if isinstance(node, ast.Lambda):
            body: Sequence[ast.AST] = [node.body]
            run: Callable[[Frame], Native] = self.evaluator(node.body)
        else:
            body, run = node.body, self.body(node.body)
        arguments = node.args
        positional = tuple(each.arg for each in (*arguments.posonlyargs, *arguments.args))
        return Code(
            run=run,
            traits=Traits.of(body) if may_declare(module, node) else NO_TRAITS,
            positional=positional,
            allowed=frozenset({*positional, *(each.arg for each in arguments.kwonlyargs)}),
            rest=None if arguments.vararg is None else arguments.vararg.arg,
            named_rest=None if arguments.kwarg is None else arguments.kwarg.arg,
            replaced=self.replacement(function),
        )

    def replacement(self, function: FunctionValue) -> Hook | None:
        """Return what runs in place of a function; None where it runs itself."""
        owner = "" if function.owner is None else f".{function.owner.name}"
        found = self.natives.get(f"{function.frame.module.module.name}{owner}.{function.name}")
        return found if isinstance(found, Hook) else None

    def _arguments(
        self,
        function: FunctionValue,
        code: Code,
        args: Sequence[Native],
        named: Mapping[str, Native],
    ) -> dict[str, Native]:
        positional = code.positional
        names: dict[str, Native] = dict(zip(positional, args, strict=False))
        rest: dict[str, Native] = {}
        for name, value in named.items():
            (names if name in code.allowed else rest)[name] = value
        if len(names) < len(code.allowed):
            first = len(positional) - len(function.defaults)
            for name, default in zip(positional[first:], function.defaults, strict=True):
                names.setdefault(name, default)
            for name, default in function.keyword_defaults.items():
                names.setdefault(name, default)
        if (
            len(names) < len(code.allowed)
            or (rest and code.named_rest is None)
            or (len(args) > len(positional) and code.rest is None)
        ):
            missing = sorted(code.allowed - names.keys())
            words = f"{function.name}() takes other arguments: {missing or sorted(rest)}"
            raise self.raised(TypeError(words))
        if code.rest is not None:
            names[code.rest] = tuple(args[len(positional) :])
        if code.named_rest is not None:
            names[code.named_rest] = rest
        return names


def _result(code: Code, frame: Frame) -> Native:
    try:
        result = code.run(frame)
    except Returned as end:
        result = end.value
    return frame.yielded if code.traits.yields else result


def may_declare(module: Module, node: ast.stmt | ast.Lambda) -> bool:
    """Return whether a definition's text has a word that `Traits` are read from; most have none."""
    lines = module.lines(("yield", "global", "nonlocal"))
    return bisect_left(lines, node.lineno) < bisect_right(lines, node.end_lineno or node.lineno)


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
            dict.update(owner, dict.fromkeys([*owner, may_be], may_be))
        else:
            own = {key: owner.get(key, Perhaps(may_be.why, given[key])) for key in keys}
            now = {k: joined(own[k], given[k]) if k in owner else own[k] for k in keys}
            dict.update(owner, now)  # a `Counter` would add
        return
    if function.__name__ not in _ADDS:
        owner.clear()
    (owner.append if isinstance(owner, list) else owner.add)(may_be)


_ADDS = frozenset({"append", "extend", "insert", "add", "update"})
_CHANGES = _ADDS | {"remove", "pop", "clear", "sort", "reverse", "setdefault", "discard", "popitem"}
"""Methods that change a list, a set or a mapping."""
_FINDS = frozenset({"getattr", "next", "max", "min", "vars", "get", "pop", "setdefault", "popitem"})
"""Functions and methods that return what an argument or a container has."""
_SEARCHES = frozenset({"count", "index"})
"""Methods whose result depends on each element."""
