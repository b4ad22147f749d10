"""The options of SGLang's server, read from its source by AST.

`python -m backend_caps.engines.sglang.command_line WHEEL` prints what `resolution/data` stores
of that version.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

_SERVER_ARGS = "sglang/srt/server_args.py"
_FIELDS = "sglang/srt/arg_groups/fields/"
_CHOICES = "sglang/srt/arg_groups/choices.py"


class CommandLine(TypedDict):
    """What a version's server takes."""

    options: list[list[str]]
    """Every option with its aliases, sorted."""
    attention_backends: list[str]
    """The names that `--attention-backend` takes, sorted."""


def read_command_line(wheel: Path) -> CommandLine:
    """Read the options and backend names of the SGLang in a wheel, importing nothing of it."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if _is_read(name)]
        trees = {name: ast.parse(archive.read(name)) for name in names}
    nodes = [(name, node) for name, tree in trees.items() for node in ast.walk(tree)]
    options = {group for name, node in nodes for group in _options(name, node)}
    backends = {value for _, node in nodes for value in _attention_backends(node)}
    return CommandLine(options=sorted(map(list, options)), attention_backends=sorted(backends))


def _is_read(name: str) -> bool:
    return name in {_SERVER_ARGS, _CHOICES} or name.startswith(_FIELDS)


def _options(name: str, node: ast.AST) -> Iterator[tuple[str, ...]]:
    match node:
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=arguments):
            if names := tuple(_strings(arguments)):
                yield names
        case ast.AnnAssign(
            target=ast.Name(id=field),
            annotation=ast.Subscript(value=ast.Name(id="A"), slice=ast.Tuple(elts=[_, meta])),
        ) if name.startswith(_FIELDS):
            yield from _annotated_option(field, meta)


def _annotated_option(field: str, meta: ast.expr) -> Iterator[tuple[str, ...]]:
    keywords = {k.arg: k.value for k in meta.keywords} if isinstance(meta, ast.Call) else {}
    if "no_cli" in keywords:
        return
    own = list(_strings([keywords["cli_name"]])) if "cli_name" in keywords else []
    aliases = keywords.get("aliases")
    others = _strings(aliases.elts) if isinstance(aliases, ast.List) else ()
    yield (*(own or ["--" + field.replace("_", "-")]), *others)


def _attention_backends(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(
            targets=[ast.Name(id="ATTENTION_BACKEND_CHOICES")], value=ast.List(elts=names)
        ):
            yield from _strings(names)


def _strings(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


if __name__ == "__main__":
    json.dump(read_command_line(Path(sys.argv[1])), sys.stdout, indent=0)
