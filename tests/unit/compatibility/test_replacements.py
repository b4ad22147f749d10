"""What a plugin puts in place of an engine's own."""

from __future__ import annotations

import ast

import pytest

from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.replacements import assigned
from backend_caps.engines.source.index import FunctionDef
from backend_caps.engines.source.module import ClassDef
from tests.unit.compatibility.pairs import class_of, function_of, pair_of

ENGINE = {
    "worker": """
        class Worker:
            def step(self): ...
        def load(): ...
        """
}


def _method(pair: Pair) -> FunctionDef:
    found = pair.method(class_of(pair, "Worker", "engine.worker"), "step")
    assert found is not None
    return found


REPLACED = [
    pytest.param("import engine.worker\nengine.worker.load = own", ["load"], id="a function"),
    pytest.param("from engine import worker\nworker.Worker = Own", ["Worker"], id="a class"),
    pytest.param("from engine.worker import Worker\nWorker.step = own", ["step"], id="a method"),
    pytest.param("from engine.worker import Worker as W\nsetattr(W, 'step', own)", ["step"],
                 id="by setattr"),
    pytest.param("def patch():\n  import engine.worker as w\n  if x: w.load = own",
                 ["load"], id="in a function"),
    pytest.param("import engine.worker as w\nclass A:\n  async def f(self): w.load = own", ["load"],
                 id="in a method"),
    pytest.param("from engine import worker\nworker.gone = own\nworker.load()", [], id="another"),
    pytest.param("import torch, engine\ntorch.load = own", [], id="another package's"),
    pytest.param("import engine\ndef f(worker): worker.load = own", [], id="an argument's"),
    pytest.param("from engine.worker import load\nload = own", [], id="its own name"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), REPLACED)
def test_an_assigned_name_of_the_engine_is_replaced(text: str, expected: list[str]) -> None:
    """Functions, methods and classes are, by the module or class that has their name."""
    pair = pair_of(ENGINE, {"m": text})
    own: dict[str, FunctionDef | ClassDef] = {
        "load": function_of(pair, "load", "engine.worker"),
        "Worker": class_of(pair, "Worker", "engine.worker"),
        "step": _method(pair),
    }

    assert [name for name, target in own.items() if pair.replacements.has(target)] == expected


def test_an_assigned_attribute_of_a_class_is_added() -> None:
    """The class need not have had it."""
    text = "from engine.worker import Worker\nWorker.num_steps = 0"
    pair = pair_of(ENGINE, {"m": text})
    worker = class_of(pair, "Worker", "engine.worker")

    assert pair.replacements.adds(worker, "num_steps")
    assert not pair.replacements.adds(worker, "num_layers")


ASSIGNED = [
    pytest.param("a.b.c = d", ("a.b", "c", "d"), id="an attribute"),
    pytest.param("setattr(a, 'b', c)", ("a", "b", "c"), id="by setattr"),
    pytest.param("setattr(a, b, c)", None, id="of a name"),
    pytest.param("f(a, 'b', c)", None, id="another call"),
    pytest.param("a = b", None, id="a name"),
]


@pytest.mark.parametrize(("text", "expected"), ASSIGNED)
def test_an_assignment_has_an_owner_a_name_and_a_value(
    text: str, expected: tuple[str, str, str] | None
) -> None:
    """One of an attribute has, and `setattr` with a text."""
    [statement] = ast.parse(text).body
    node = statement.value if isinstance(statement, ast.Expr) else statement

    found = assigned(node)

    assert expected == (found and (ast.unparse(found[0]), found[1], ast.unparse(found[2])))


CALLS = {
    "calls": """
        from engine.worker import load
        class Runner:
            def run(self): load()
            loaded = load()
        def load_all(): load()
        load()
        """,
    **ENGINE,
}
COVERED = [
    pytest.param("import engine.calls\nengine.calls.load_all = own", [6], id="a function"),
    pytest.param("from engine.calls import Runner\nRunner.run = own", [4], id="a method"),
    pytest.param("from engine.calls import Runner\nRunner.stop = own", [], id="another"),
]


@pytest.mark.parametrize(("text", "expected"), COVERED)
def test_a_call_in_a_function_that_is_replaced_is_not_made(text: str, expected: list[int]) -> None:
    """Calls outside of all functions are."""
    pair = pair_of(CALLS, {"m": text})

    sites = pair.sites_in("engine/calls.py")["load"]

    assert [e.call.lineno for e in sites if pair.replacements.covers(e)] == expected
