"""Trees are walked to the nodes that `ast.walk` finds."""

from __future__ import annotations

import ast
import linecache
import types

import pytest

import backend_caps.compatibility.places
from backend_caps.compatibility.nodes import children, dotted, walk

EACH_SYNTAX = """
import a.b as c
from .d import e as f
async def g(h: int, /, i=1, *j, k=2, **l) -> str:
    global m
    async with n as o, p: await q
    async for r in s: yield r
    return (yield from t)
def u():
    nonlocal v
    del w[1:2:3], x.y
    with z: ...
@deco
class A(B, metaclass=C):
    D: int = -1
    E += not 2
match F:
    case {"G": 1, **H}: pass
    case I(J=None, K=[_, *L]) | True as M if N: pass
try: assert O, P
except* Q as R: raise S from T
finally: lambda U: f"{V!r:>{W}}"
while X: continue
else: {**Y, "Z": 1, **{aa for ab in ac if ad}}
[ae for af in ag for ah in ai]; (*aj, ak := al); am if an else ao < ap > aq
"""
_NO_CODE = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def _text(module: types.ModuleType) -> str:
    return "".join(linecache.getlines(module.__file__ or ""))


@pytest.mark.parametrize(
    "text", [EACH_SYNTAX, _text(ast), _text(backend_caps.compatibility.places)]
)
def test_all_nodes_are_found(text: str) -> None:
    """Operators and contexts are left out, as nothing is in them."""
    tree = ast.parse(text)

    expected = {node for node in ast.walk(tree) if not isinstance(node, _NO_CODE)}
    assert {*walk(tree)} == expected


def test_nodes_come_in_the_order_of_the_text() -> None:
    """What is in a node comes after it, and before what follows it."""
    found = walk(ast.parse("f(a, g(b), c)\nd"))

    assert [node.id for node in found if isinstance(node, ast.Name)] == [*"fagbcd"]


def test_only_nodes_are_children() -> None:
    """A missing key, as of `**` in a dictionary, is no node."""
    [key, *values] = children(ast.parse("{'x': a, **b}", mode="eval").body)

    assert [ast.unparse(each) for each in (key, *values)] == ["'x'", "a", "b"]


@pytest.mark.parametrize(
    ("text", "expected"), [("a", "a"), ("a.b.c", "a.b.c"), ("a().b", None), ("a[0]", None)]
)
def test_a_dotted_name_is_a_name_with_attributes(text: str, expected: str | None) -> None:
    """A call, or another expression, has no name."""
    assert dotted(ast.parse(text, mode="eval").body) == expected
