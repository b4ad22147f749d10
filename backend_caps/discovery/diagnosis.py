"""Why an object is no declaration, and where it is written: what a problem says of it."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from backend_caps.capability.declaration import Declaration, Part, When
from backend_caps.capability.facts import Facts, Given
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.errors import nearest
from backend_caps.resolution.rules import Rule

_MODELS: Mapping[str, type[BaseModel]] = {
    model.__name__: model for model in (Capabilities, Declaration, Facts, Given, Rule, When)
}
_LONGEST_INPUT = 60
"""How much of a wrong value a sentence repeats."""
_NAMES = frozenset(_MODELS) | {Part.__name__}
_SCOPES = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Lambda, ast.comprehension)


def schema_fault(error: BaseException) -> str | None:
    """Explain an error that comes of using what this version's contract does not have.

    None where it comes of something else.
    """
    match error:
        case ValidationError(title=title) if title in _NAMES:
            return validation_fault(error)
        case ImportError(name=str(name)) if _is_ours(name):
            return str(error)
        case AttributeError(obj=type() as owner) if _is_ours(owner.__module__):
            return str(error)
    return None


def validation_fault(error: ValidationError) -> str:
    """Write a validation error as one line: of each field, the first thing that is wrong."""
    first: dict[object, ErrorDetails] = {}
    for details in error.errors(include_url=False, include_context=False):
        first.setdefault(details["loc"][:1], details)
    return "; ".join(_sentence(error.title, details) for details in first.values())


def _sentence(title: str, details: ErrorDetails) -> str:
    name = "".join(map(str, details["loc"][:1]))
    if details["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:
        fields = _MODELS[title].model_fields if title in _MODELS else ()
        close = nearest(name, list(fields), cutoff=0.6)
        hint = f" (did you mean {close!r}?)" if close else ""
        return f"{title} has no field {name!r}{hint}"
    expected = details["msg"].removeprefix("Value error, ").removesuffix(".")
    if not name:
        return expected
    given = repr(details["input"])
    shown = given if len(given) <= _LONGEST_INPUT else f"{given[:_LONGEST_INPUT]}..."
    return f"{title}.{name} is {shown}: {expected}"


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "backend_caps"


def source_line(module: ModuleType, attribute: str) -> str | None:
    """Return `file:line` of a module's attribute, from its source.

    Just the file where the source is not there or does not say; None for a module without a
    file. An attribute of a class is found in the class.
    """
    file = vars(module).get("__file__")
    if not isinstance(file, str):
        return None
    source = "".join(linecache.getlines(file, vars(module)))
    line = _line_of(ast.parse(source), attribute.split("."))
    return file if line is None else f"{file}:{line}"


def _line_of(scope: ast.AST, names: Sequence[str]) -> int | None:
    """Find the last binding of the first name, and within it that of the rest."""
    bindings = [(line, node) for node, name, line in _bindings(scope) if name == names[0]]
    if not bindings:
        return None
    line, last = bindings[-1]
    within = _line_of(last, names[1:]) if names[1:] else None
    return within or line


def _bindings(scope: ast.AST) -> Iterator[tuple[ast.AST, str, int]]:
    """List what a scope binds, without what the scopes inside bind."""
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line):
                yield node, name, line
            case ast.ClassDef(name=name, lineno=line) | ast.FunctionDef(name=name, lineno=line):
                yield node, name, line
            case ast.alias(name=name, asname=renamed, lineno=line):
                yield node, renamed or name, line
        if not isinstance(node, _SCOPES):
            yield from _bindings(node)
