"""The process that reads declarations: imports each entry's module and sends what it declares.

`process` starts it. Code of plugins runs here and nowhere else.
"""

from __future__ import annotations

import ast
import importlib
import linecache
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from operator import attrgetter
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import IO

import pydantic
from pydantic import BaseModel

import backend_caps
from backend_caps.capability.declaration import Declaration
from backend_caps.discovery.diagnosis import schema_fault
from backend_caps.discovery.process import Answer, Work, working_directory_of_process
from backend_caps.discovery.scan import BACKENDS
from backend_caps.resolution.rules import Rule

_SHOWN = 500
"""The characters of an error's text that a report shows."""
_MACHINERY = [Path(str(module.__file__)).parent for module in (backend_caps, importlib, pydantic)]
"""Folders whose lines are never a plugin's."""


_SCOPES = (ast.AsyncFunctionDef, ast.ClassDef, ast.FunctionDef, ast.Lambda, ast.comprehension)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """The pipe to the parent, and the output that both processes read."""

    results: IO[bytes]
    output: int
    """A duplicate of standard output's descriptor: a plugin may close the original."""
    process: int

    def send(self, answer: Answer) -> None:
        """Send an answer, except from a fork that a plugin made of this process."""
        if os.getpid() == self.process:
            printed = os.lseek(self.output, 0, os.SEEK_CUR)
            self.results.write(replace(answer, num_printed_bytes=printed).to_line())
            self.results.flush()


def main(work: Work, results: int) -> None:
    """Read every entry; stop after one that loads torch.

    A module stays loaded: the entries after it would be blamed for torch too.
    """
    # A program that a plugin starts would keep the pipe open, and the parent waiting for its end.
    os.set_inheritable(results, False)  # noqa: FBT003 - os's own signature
    pipe, output = os.fdopen(results, "wb"), os.dup(sys.stdout.fileno())
    channel = Channel(results=pipe, output=output, process=os.getpid())
    folder = working_directory_of_process() or os.sep
    for group, value in work["entries"]:
        # The entry before may have changed the path and the working directory.
        sys.path = list(work["path"])
        with suppress(OSError):  # it may be deleted
            os.chdir(folder)
        channel.send(Answer(is_done=False))
        # The parent enforces the deadline; the timer ends a child whose parent was killed.
        signal.setitimer(signal.ITIMER_REAL, 2 * work["deadline_s"])
        answer = read(group, value)
        signal.setitimer(signal.ITIMER_REAL, 0)
        channel.send(answer)
        if answer.is_last:
            break


def read(group: str, value: str) -> Answer:
    """Import an entry's module and read its object; any error becomes a fault."""
    had_torch = "torch" in sys.modules
    module_name, _, attribute = value.partition(":")
    try:
        answer = _declared(group, module_name, attribute)
    except BaseException as error:  # noqa: BLE001 - a plugin may raise anything
        answer = _fault(module_name, error)
    loaded_torch = not had_torch and "torch" in sys.modules
    return replace(answer, loaded_torch=loaded_torch, is_last=loaded_torch)


def _declared(group: str, module_name: str, attribute: str) -> Answer:
    module = importlib.import_module(module_name)
    try:
        found = attrgetter(attribute)(module)
    except AttributeError:
        return Answer(fault="missing-attribute", detail=attribute)
    models = _models(group, found)
    if models is None:
        return Answer(fault="wrong-type", detail=_kind(found))
    documents = [model.model_dump_json() for model in models]
    return Answer(documents=documents, declared_at=source_line(module, attribute))


def _models(group: str, found: object) -> Sequence[BaseModel] | None:
    """Return a declaration, or one or several rules; None for another object."""
    if group == BACKENDS:
        return (found,) if isinstance(found, Declaration) else None
    if isinstance(found, Rule):
        return (found,)
    if not isinstance(found, Sequence):
        return None
    rules = [rule for rule in found if isinstance(rule, Rule)]
    return rules if len(rules) == len(found) else None


def _kind(found: object) -> str:
    kind = type(found).__name__
    if not isinstance(found, list | tuple):
        return repr(kind)
    members = sorted({type(member).__name__ for member in found})
    return f"{kind!r} of {', '.join(map(repr, members))}"


def _fault(module_name: str, error: BaseException) -> Answer:
    match error:
        case SystemExit(code=code):
            return Answer(fault="exits", detail=f"calls sys.exit({code!r})")
        case ModuleNotFoundError(name=str(name)) if f"{module_name}.".startswith(f"{name}."):
            return Answer(fault="missing-module", detail=name)
    where = _where(error) or _file_of(module_name)
    if (misfit := schema_fault(error)) is not None:
        return Answer(fault="schema", detail=misfit + where)
    return Answer(fault="raises", detail=_text(error) + where)


def _text(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - `__str__` may be the plugin's
        text = "(its text cannot be shown)"
    kind = type(error).__name__
    return f"{kind}: {text[:_SHOWN]}" if text else kind


def _where(error: BaseException) -> str:
    """Name the innermost line that is neither of this package nor of a library it uses."""
    # Python names neither file nor line for a source with a null byte.
    if isinstance(error, SyntaxError) and error.filename is not None:
        line = "" if error.lineno is None else f":{error.lineno}"
        return f" at {error.filename}{line}"
    where = ""
    for frame, number in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith("<") and not any(map(Path(file).is_relative_to, _MACHINERY)):
            where = f" at {file}:{number}"
    return where


def _file_of(module_name: str) -> str:
    """Name the file of a module whose import failed before a line of it ran."""
    parent = module_name.rpartition(".")[0]
    # `importlib.util.find_spec` would import the parent package, and so run a failed one again.
    with suppress(ImportError, KeyError, ValueError, AttributeError):
        within = sys.modules[parent].__path__ if parent else None
        spec = PathFinder.find_spec(module_name, within)
        if spec is not None and spec.has_location:
            return f" in {spec.origin}"
    return ""


def source_line(module: ModuleType, attribute: str) -> str | None:
    """Return `file:line` of a module's attribute, from its source.

    Just the file where the source is missing or has no such binding; None for a module without a
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
    """Yield the bindings of a scope, without those of inner scopes."""
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
