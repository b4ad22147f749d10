"""The options of SGLang's server, read from its source.

`python -m backend_caps.engines.sglang.command_line WHEEL` prints what `resolution/data` stores
of that version.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
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
    """Read the command line for `ServerFlags`; what is not found is a problem."""
    options: set[tuple[str, ...]] = set()
    backends: set[str] = set()
    for path in (p for p in index.tree.files if _is_read(p)):
        module = index.parse(path)
        if module is not None:
            options.update(_of_parser(module))
            options.update(_of_fields(module))
            backends.update(_choices(module))
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
    for statement in (each for each in _statements(module) if spans(each, lines)):
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=arguments):
                    if names := tuple(_strings(arguments)):
                        yield names


def _statements(module: Module) -> Iterator[ast.stmt]:
    """List the statements of a module and of its classes, but no class statements."""
    bodies = [module.tree.body, *(each.node.body for each in module.classes)]
    return (each for body in bodies for each in body if not isinstance(each, ast.ClassDef))


def _of_fields(module: Module) -> Iterator[tuple[str, ...]]:
    """List the options of annotated fields, which newer versions make their parser from."""
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
                    yield from _annotated_option(field, meta)


def _annotated_option(field: str, meta: ast.expr) -> Iterator[tuple[str, ...]]:
    keywords = {k.arg: k.value for k in meta.keywords} if isinstance(meta, ast.Call) else {}
    if "no_cli" in keywords:
        return
    own = list(_strings([keywords["cli_name"]])) if "cli_name" in keywords else []
    aliases = keywords.get("aliases")
    others = _strings(aliases.elts) if isinstance(aliases, ast.List) else ()
    yield (*(own or ["--" + field.replace("_", "-")]), *others)


def _choices(module: Module) -> Iterator[str]:
    for _, meaning in module.scope.get(_CHOICES, ()):
        if isinstance(meaning, ast.List):
            yield from _strings(meaning.elts)


def read_aliases(index: Index) -> Mapping[str, str]:
    """Read the old names of backends that the server replaces, each with what replaces it."""
    aliases: dict[str, str] = {}
    for path in index.containing(b"speculative_draft_attention_backend"):
        is_arguments = path == ARGUMENTS or path.startswith(_GROUPS)
        if is_arguments and b"deprecated" in index.tree.files[path]:
            module = index.parse(path)
            for each in _statements(module) if module else ():
                if isinstance(each, Function) and any(map(_is_over_slots, ast.walk(each))):
                    aliases |= _replaced(each)
    return dict(sorted(aliases.items()))


def _is_over_slots(node: ast.AST) -> bool:
    """Return whether a loop goes over the flags that name backends."""
    names = node.iter if isinstance(node, ast.For) else None
    return isinstance(names, ast.Tuple) and _SLOT in set(_strings(names.elts))


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
