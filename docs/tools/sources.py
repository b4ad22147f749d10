"""What the code says of itself: its docstrings, those of attributes among them, and problems.

A running program knows neither the docstrings of attributes nor the words of problems: these are
read in its source, which is not run.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from itertools import pairwise
from pathlib import Path

from backend_caps.capability.provenance import problem_texts as stored_texts
from backend_caps.resolution import errors

PACKAGE = Path(__file__).parents[2] / "backend_caps"
SGLANG = Path(__file__).parents[2] / "plugins" / "sglang" / "backend_caps_sglang"
VALUE = re.compile(r"\{.*?\}")
"""A value that is filled in."""


@cache
def trees() -> Mapping[Path, ast.Module]:
    """Parse every file of the package, and of SGLang's plugin, which has problems of its own."""
    paths = sorted([*PACKAGE.rglob("*.py"), *SGLANG.rglob("*.py")])
    return {path: ast.parse(path.read_text("utf-8")) for path in paths}


@cache
def attribute_docs() -> Mapping[str, Mapping[str, str]]:
    """List the docstrings below attributes, inherited ones too, by class and attribute."""
    own = {name: docs for tree in trees().values() for name, docs in _attribute_docs(tree)}
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    return {name: _with_inherited(name, own, bases) for name in own}


def _with_inherited(
    name: str, own: Mapping[str, Mapping[str, str]], bases: Mapping[str, list[str]]
) -> Mapping[str, str]:
    inherited = [_with_inherited(base, own, bases) for base in bases[name] if base in own]
    return {**ChainMap(*map(dict, inherited)), **own[name]}


def attribute_docs_of(kind: type) -> Mapping[str, str]:
    """List the docstrings below one class's attributes: other files may have its name too."""
    return dict(_attribute_docs(trees()[Path(inspect.getfile(kind))]))[kind.__name__]


def _attribute_docs(tree: ast.Module) -> Iterator[tuple[str, Mapping[str, str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, dict(_below_attributes(node))


def _below_attributes(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one, other in pairwise(node.body):
        match one, other:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(cleandoc(text).split())


def first_line(thing: object) -> str:
    """Return the first line of a docstring."""
    text = inspect.getdoc(thing)
    assert text is not None, f"{thing} has no docstring"
    return text.partition("\n\n")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemText:
    """A problem by its texts; what is filled in is shown as `…`."""

    code: str
    message: str
    remedies: tuple[str, ...]
    """One, or one for each case."""


def problem_texts() -> list[ProblemText]:
    """List the problems of plans: of `problems.toml`, and those written out in the source."""
    stored = [
        ProblemText(
            code=code,
            message=VALUE.sub("…", own.message),
            remedies=tuple(VALUE.sub("…", each) for each in (own.remedy, own.hint) if each),
        )
        for code, own in stored_texts(errors.__file__).items()
    ]
    return stored + [
        text
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for text in _problem_text(node)
    ]


def _problem_text(call: ast.Call) -> Iterator[ProblemText]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    match call.func, given.get("code"):
        case ast.Name(id="Problem"), ast.Constant(value=str(code)):
            yield ProblemText(
                code=code, message=_texts(given["message"])[0], remedies=_texts(given["remedy"])
            )


def _texts(node: ast.expr) -> tuple[str, ...]:
    """Write down a string of the source: each way it can come out."""
    match node:
        case ast.Constant(value=str(text)):
            return (text,)
        case ast.JoinedStr(values=parts):
            return ("".join(map(_piece, parts)),)
        case ast.IfExp(body=one, orelse=other):
            return (*_texts(one), *_texts(other))
    raise AssertionError(f"line {node.lineno}: not a text that can be shown: {ast.unparse(node)}")


def _piece(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "…"
