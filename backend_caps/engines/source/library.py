"""What functions of Python's library do, for a program that is interpreted.

Pure functions are Python's own. What would touch files, processes or the clock is unknown.
"""

from __future__ import annotations

import argparse
import ast
import collections
import collections.abc
import copy
import inspect
import itertools
import json
import math
import operator
import os.path
import re
import types
import typing
from collections.abc import Mapping

import packaging.version

from backend_caps.engines.source.objects import Objects
from backend_caps.engines.source.parsers import PARSING
from backend_caps.engines.source.records import RECORDS
from backend_caps.engines.source.validation import PYDANTIC
from backend_caps.engines.source.values import (
    Args,
    ClassValue,
    Descriptor,
    External,
    FunctionValue,
    Hook,
    Instance,
    Managed,
    Method,
    Named,
    Native,
    Suppressed,
    Unknown,
)


def _module(name: str, module: object, *names: str) -> dict[str, Native]:
    return {f"{name}.{each}": getattr(module, each) for each in names}


def _nothing(_run: Objects, _args: Args, _named: Named) -> Native:
    return None


def _first(_run: Objects, args: Args, _named: Named) -> Native:
    return args[0]


def _cached(run: Objects, args: Args, named: Named) -> Native:
    """Keep what a function returned for the same arguments."""
    if len(args) != 1 or isinstance(args[0], int | None):
        return Hook(_cached)
    function, kept = args[0], dict[Native, Native]()

    def call(run: Objects, args: Args, named: Named) -> Native:
        key = (*args, *sorted(named.items()))
        try:
            hash(key)
        except TypeError as error:
            raise run.raised(error) from error
        if key in kept:
            return kept[key]
        result = run.call(function, *args, **named)
        if run.is_certain:
            kept[key] = result
        return result

    del run, named
    return Hook(call, {"cache_clear": Hook(lambda *_: kept.clear())})


def _partial(_run: Objects, args: Args, named: Named) -> Native:
    function, *first = args
    return Hook(lambda run, more, own: run.call(function, *first, *more, **{**named, **own}))


def _wraps(_run: Objects, args: Args, _named: Named) -> Native:
    """Give a wrapper the name of what it wraps."""
    name = args[0].name if isinstance(args[0], FunctionValue) else str(args[0])

    def named_so(_run: Objects, own: Args, _named: Named) -> Native:
        own[0].attributes["__name__"] = name
        return own[0]

    return Hook(named_so)


def _context_manager(_run: Objects, args: Args, _named: Named) -> Native:
    function = args[0]
    return Hook(lambda _run, own, named: Managed(function, own, named))


def _cached_property(_run: Objects, args: Args, _named: Named) -> Native:
    return Descriptor("cached_property", args[0])


def _reduce(run: Objects, args: Args, _named: Named) -> Native:
    function, values, *start = args
    values = run.iterated(values)
    if isinstance(values, Unknown):
        return values
    rest = [*start, *values]
    result = rest[0]
    for each in rest[1:]:
        result = run.call(function, result, each)
    return result


def _deep_copy(_run: Objects, args: Args, _named: Named) -> Native:
    return _copied(args[0], {})


def _copied(value: Native, seen: dict[int, Native]) -> Native:
    if id(value) in seen:
        return seen[id(value)]
    match value:
        case Instance() if not value.cls.is_enum:
            made = seen[id(value)] = Instance(value.cls)
            made.attributes = {k: _copied(v, seen) for k, v in value.attributes.items()}
            return made
        case dict():
            items = copy.copy(value)  # of its own class
            for key, each in value.items():
                items[key] = _copied(each, seen)
            return items
        case list() | set() | tuple():
            return type(value)(_copied(each, seen) for each in value)
    held = getattr(value, "interpreted_copy", None)
    return value if held is None else held(lambda each: _copied(each, seen))


def _get_args(_run: Objects, args: Args, _named: Named) -> Native:
    return args[0] if isinstance(args[0], tuple) else typing.get_args(args[0])


def _get_origin(_run: Objects, args: Args, _named: Named) -> Native:
    return types.UnionType if isinstance(args[0], tuple) else typing.get_origin(args[0])


_LOGGER = External("logging.Logger")


def _quiet(path: str) -> Native:
    del path
    return Hook(_nothing)


def _typing(path: str) -> Native:
    return getattr(typing, path.partition(".")[2], External(path))


def _import(run: Objects, args: Args, _named: Named) -> Native:
    name = args[0]
    return run.import_module(name) if isinstance(name, str) else Unknown("a module")


def _signature(_run: Objects, args: Args, _named: Named) -> Native:
    """Return the signature of a function, a method or a class of the program."""
    function, num_given = args[0], 0
    if isinstance(function, ClassValue):
        function, num_given = function.lookup("__init__"), 1
    while isinstance(function, Method | Descriptor):
        num_given += isinstance(function, Method)
        function = function.function
    if not isinstance(function, FunctionValue):
        return Unknown("signature(...)")
    code = function.node.args
    positional = [*code.posonlyargs, *code.args]
    defaults = [*([inspect.Parameter.empty] * (len(positional) - len(function.defaults)))]
    defaults += function.defaults
    kinds = inspect.Parameter
    stated: list[tuple[ast.arg, Native, Native]] = [
        (each, kinds.POSITIONAL_OR_KEYWORD, default)
        for each, default in zip(positional, defaults, strict=True)
    ][num_given:]
    if code.vararg is not None:
        stated.append((code.vararg, kinds.VAR_POSITIONAL, kinds.empty))
    for each in code.kwonlyargs:
        default = function.keyword_defaults.get(each.arg, kinds.empty)
        stated.append((each, kinds.KEYWORD_ONLY, default))
    if code.kwarg is not None:
        stated.append((code.kwarg, kinds.VAR_KEYWORD, kinds.empty))
    return inspect.Signature(
        [kinds(each.arg, kind, default=default) for each, kind, default in stated],
        __validate_parameters__=False,
    )


def _shallow(value: Native) -> Native:
    if isinstance(value, Instance):
        return Instance(value.cls, {**value.attributes})
    return copy.copy(value) if isinstance(value, list | dict | set) else value


def _env(environ: Mapping[str, str], name: str, default: Native = None) -> Native:
    return environ.get(name, default)


_KNOWN: dict[str, Native] = {
    **PARSING,
    **RECORDS,
    **PYDANTIC,
    "logging.*": _quiet,
    "logging.getLogger": Hook(lambda *_: _LOGGER),
    "warnings.*": _quiet,
    "functools.lru_cache": Hook(_cached),
    "functools.cache": Hook(_cached),
    "functools.wraps": Hook(_wraps),
    "functools.partial": Hook(_partial),
    "functools.cached_property": Hook(_cached_property),
    "functools.reduce": Hook(_reduce),
    "copy.deepcopy": Hook(_deep_copy),
    "copy.copy": Hook(lambda _r, args, _n: _shallow(args[0])),
    "typing.get_args": Hook(_get_args),
    "typing.get_origin": Hook(_get_origin),
    "typing.cast": Hook(lambda _r, args, _n: args[1]),
    "typing.TYPE_CHECKING": False,
    "typing.overload": Hook(_first),
    "typing.runtime_checkable": Hook(_first),
    "typing.final": Hook(_first),
    "typing.Generic": External("typing.Generic"),
    "typing.Protocol": External("typing.Protocol"),
    "typing.TypeVar": Hook(lambda *_: typing.Any),
    "typing.dataclass_transform": Hook(lambda *_: Hook(_first)),
    "typing_extensions.dataclass_transform": Hook(lambda *_: Hook(_first)),
    "typing_extensions.runtime_checkable": Hook(_first),
    "typing_extensions.deprecated": Hook(lambda *_: Hook(_first)),
    "typing_extensions.override": Hook(_first),
    "typing.override": Hook(_first),
    "typing.*": _typing,
    "typing_extensions.*": _typing,
    "types.UnionType": types.UnionType,
    "types.NoneType": type(None),
    "types.SimpleNamespace": Hook(lambda _r, _a, n: argparse.Namespace(**n)),
    "abc.abstractmethod": Hook(_first),
    "contextlib.contextmanager": Hook(_context_manager),
    "contextlib.suppress": Hook(lambda _r, args, _n: Suppressed(tuple(args))),
    "os.cpu_count": Hook(lambda *_: 64),
    "os.sep": "/",
    "sys.platform": "linux",
    "sys.version_info": (3, 12, 0),
    "platform.machine": Hook(lambda *_: "x86_64"),
    "platform.uname": Hook(lambda *_: ("Linux", "server", "6.8.0", "1", "x86_64")),
    "enum.unique": Hook(_first),
    "inspect.signature": Hook(_signature),
    "inspect.Parameter": inspect.Parameter,
    "importlib.import_module": Hook(_import),
}
_KNOWN |= _module("json", json, "loads", "dumps", "JSONDecodeError")
_KNOWN |= _module("math", math, "ceil", "floor", "log2", "gcd", "lcm", "sqrt", "inf", "prod")
for _each in ("re", "regex"):  # what engines use of the latter, the former has
    _KNOWN |= _module(_each, re, "match", "fullmatch", "search", "sub", "compile", "findall")
    _KNOWN |= _module(_each, re, "split", "IGNORECASE", "MULTILINE", "VERBOSE", "DOTALL")
_KNOWN |= _module("itertools", itertools, "chain", "product", "accumulate", "repeat")
_KNOWN |= _module("operator", operator, "itemgetter", "mul", "add", "or_")
_KNOWN |= _module("collections", collections, "OrderedDict", "Counter")
_KNOWN |= _module("collections.abc", collections.abc, *collections.abc.__all__)
_KNOWN |= _module("packaging.version", packaging.version, "Version", "parse", "InvalidVersion")
_KNOWN["packaging.version"] = External("packaging.version")
_KNOWN["collections.defaultdict"] = collections.defaultdict
for _each in ("join", "basename", "dirname", "splitext", "normpath"):
    _KNOWN[f"os.path.{_each}"] = getattr(os.path, _each)


def forget_types() -> None:
    """Empty the caches of `typing`, whose keys are classes of programs and so hold all of them."""
    for clear in getattr(typing, "_cleanups", ()):
        clear()


def library(environ: Mapping[str, str]) -> dict[str, Native]:
    """Return what names of Python's library mean, in a process with this environment."""
    return {
        **_KNOWN,
        "sys.argv": ["sglang"],
        "os.environ": dict(environ),
        "os.getenv": Hook(lambda _r, args, n: _env(environ, *args, **n)),
    }
