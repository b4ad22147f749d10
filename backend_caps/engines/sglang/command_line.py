"""The options of SGLang's server, read from its source.

`python -m backend_caps.engines.sglang.command_line WHEEL` prints what `resolution/data` stores
of that version.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

from backend_caps.engines.source.files import open_tree
from backend_caps.engines.source.guards import Function, spans
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.module import Module
from backend_caps.resolution.engine import Engine

ARGUMENTS = "sglang/srt/server_args.py"
"""The file of the server's arguments."""
_GROUPS = "sglang/srt/arg_groups/"
_FIELDS = "sglang/srt/arg_groups/fields/"
_CHOICES = "ATTENTION_BACKEND_CHOICES"
_SLOT = "attention_backend"


def read_command_line(source: Path) -> Mapping[str, object]:
    """Read the SGLang in a wheel or a folder as the document that `resolution/data` stores."""
    engine = read_engine_options(Index(open_tree("sglang", source, within=_is_read)))
    return {
        "options": sorted(map(list, {*engine.options.values()})),
        "attention_backends": sorted(engine.attention_backends),
    }


def read_engine_options(index: Index) -> Engine:
    """Read the command line for `ServerFlags`; a missing part becomes a problem."""
    options: set[tuple[str, ...]] = set()
    backends: set[str] = set()
    for module in index.modules(filter(_is_read, index.tree.files)):
        options.update(_of_parser(module))
        options.update(_of_fields(module))
        choices = (meaning for _, meaning in module.scope.get(_CHOICES, ()))
        lists = (each.elts for each in choices if isinstance(each, ast.List))
        backends.update(_strings(chain.from_iterable(lists)))
    for what, found in (("command-line option", options), (_CHOICES, backends)):
        if not found:
            index.note_missing(what, ARGUMENTS)
    return Engine(
        name=index.label,
        options={option: group for group in sorted(options) for option in group},
        attention_backends=frozenset(backends),
    )


def _is_read(path: str) -> bool:
    return path in {ARGUMENTS, f"{_GROUPS}choices.py"} or path.startswith(_FIELDS)


def _of_parser(module: Module) -> Iterator[tuple[str, ...]]:
    """List the options that calls of `add_argument` add."""
    lines = module.lines(["add_argument"])
    for statement in _statements(module):
        for node in ast.walk(statement) if spans(statement, lines) else ():
            match node:
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=arguments):
                    if names := tuple(_strings(arguments)):
                        yield names


def _statements(module: Module) -> Iterator[ast.stmt]:
    """List the statements of a module and of its classes, but no class statements."""
    bodies = [module.tree.body, *(each.node.body for each in module.classes)]
    return (each for body in bodies for each in body if not isinstance(each, ast.ClassDef))


def _of_fields(module: Module) -> Iterator[tuple[str, ...]]:
    """List the options of annotated fields, from which newer versions make their parser."""
    if not module.path.startswith(_FIELDS):
        return
    for definition in module.classes:
        for statement in definition.node.body:
            match statement:
                case ast.AnnAssign(
                    target=ast.Name(id=field),
                    annotation=ast.Subscript(
                        value=ast.Name(id="A"), slice=ast.Tuple(elts=[_, meta])
                    ),
                ):
                    stated = meta.keywords if isinstance(meta, ast.Call) else ()
                    keywords = {each.arg: [each.value] for each in stated}
                    own = list(_strings(keywords.get("cli_name", ())))
                    lists = (n.elts for n in keywords.get("aliases", ()) if isinstance(n, ast.List))
                    aliases = _strings(chain.from_iterable(lists))
                    if "no_cli" not in keywords:
                        yield (*(own or ["--" + field.replace("_", "-")]), *aliases)


def read_aliases(index: Index) -> Mapping[str, str]:
    """Read the backend names that the server replaces, each with its new name."""
    aliases: dict[str, str] = {}
    for path in index.containing(b"speculative_draft_attention_backend"):
        is_arguments = path == ARGUMENTS or path.startswith(_GROUPS)
        if is_arguments and b"deprecated" in index.tree.files[path]:
            for each in chain.from_iterable(map(_statements, index.modules([path]))):
                loops = [node.iter for node in ast.walk(each) if isinstance(node, ast.For)]
                flags = chain.from_iterable(o.elts for o in loops if isinstance(o, ast.Tuple))
                if isinstance(each, Function) and _SLOT in _strings(flags):
                    aliases |= _replaced(each)
    return dict(sorted(aliases.items()))


def _replaced(function: Function) -> dict[str, str]:
    """Read `aliases = {old: new}`, or `if ... == old: setattr(..., new)`."""
    found: dict[str, str] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id="aliases")], value=ast.Dict() as table):
                for key, value in zip(table.keys, table.values, strict=True):
                    match key, value:
                        case ast.Constant(value=str(old)), ast.Constant(value=str(new)):
                            found[old] = new
            case ast.If(
                test=ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=str(old))]),
                body=[
                    *_,
                    ast.Expr(
                        value=ast.Call(
                            func=ast.Name(id="setattr"), args=[*_, ast.Constant(value=str(new))]
                        )
                    ),
                ],
            ):
                found[old] = new
    return found


def _strings(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


if __name__ == "__main__":
    json.dump(read_command_line(Path(sys.argv[1])), sys.stdout, indent=0)
