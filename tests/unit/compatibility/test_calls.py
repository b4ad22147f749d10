"""What a plugin calls of an engine, and what it makes of the results."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.calls import calls, unpackings
from backend_caps.compatibility.contact import Contact, Form, Verdict
from backend_caps.compatibility.places import Places
from tests.unit.compatibility.pairs import module_of, pair_of

ENGINE = {
    "ops": """
        import functools
        def load(path, device=0): ...
        async def fetch(path): ...
        @traced
        def trace(path): ...
        def two(x): return 1, 2
        def either(x):
            if x: return 1, 2
            return 1, 2, 3
        async def pair(x): return 1, 2
        def any_of(x): return x
        """,
    "worker": """
        from dataclasses import dataclass
        class Worker:
            size = 1
            def __init__(self, rank): ...
            def step(self, batch): ...
            @classmethod
            def make(cls, rank): ...
            @staticmethod
            def key(rank): ...
            @property
            def runner(self): ...
        class Fast(Worker):
            def step(self, batch, graph): ...
            def stop(self): ...
        @dataclass
        class Config:
            rank: int
        @unknown
        class Made: ...
        """,
}
IMPORTS = "from engine import ops\nfrom engine.worker import Config, Fast, Made, Worker\n"


def _found(text: str) -> list[Contact]:
    pair = pair_of(ENGINE, {"m": IMPORTS + dedent(text)})
    return [
        contact
        for place in Places(module_of(pair), pair.conditions)
        for contact in (*calls(pair, place), *unpackings(pair, place))
    ]


def _told(text: str) -> list[tuple[str, Verdict, str]]:
    return [(each.what, each.verdict, each.why) for each in _found(text)]


FITTING = [
    pytest.param("class A(Fast):\n  def step(self): super(Fast, self).step(1)", "Worker.step",
                 id="behind a base"),
    pytest.param("class A(Fast):\n  def step(self): super(A, self).step(1, 2)", "Fast.step",
                 id="behind the class itself"),
    pytest.param("ops.load(1, device=2)", "load", id="a function"),
    pytest.param("ops.load(*x)", "load", id="what is unpacked"),
    pytest.param("Worker(0)", "Worker", id="a constructor"),
    pytest.param("Worker.make(0)", "Worker.make", id="a method of the class"),
    pytest.param("Worker.key(0)", "Worker.key", id="a static method"),
    pytest.param("Worker.step(x, 1)", "step", id="a method with its instance"),
    pytest.param("w = Worker(0)\nw.key(0)", "Worker.key", id="of what is made"),
    pytest.param("class A(Worker):\n  def f(self): self.step(1)", "Worker.step", id="its own"),
    pytest.param("class A(Worker):\n  def step(self, b): super().step(b)", "Worker.step",
                 id="the base's"),
    pytest.param("class A(Worker): ...\nA(0)", "A", id="a subclass with the constructor"),
    pytest.param("class A(Config): ...\nA(rank=0)", "A", id="a subclass with the fields"),
    pytest.param("keep = Worker.step\ndef f(x): keep(x, 1)", "step", id="one that is kept"),
    pytest.param("keep = Worker.make\ndef f(x): keep(1)", "Worker.make",
                 id="a method of the class that is kept"),
    pytest.param("def f(w: Worker): w.step(1)", "Worker.step", id="of an argument"),
]  # fmt: skip
NO_CALLS = [
    pytest.param("Worker(0).runner()", id="of what a property gives"),
    pytest.param("Worker.size()", id="of a value"),
    pytest.param("class A(Worker):\n  def step(self, b): ...\n  def f(self): self.step()",
                 id="of the plugin's own method"),
    pytest.param("class A:\n  def __init__(self): super().__init__()", id="of no base"),
    pytest.param("class A(Worker):\n  def __init__(self, a, b): ...\nA(1, 2)",
                 id="of the plugin's own constructor"),
    pytest.param("class A: ...\nA()", id="of the plugin's own class"),
    pytest.param("def f(): ...\nf(1)", id="of the plugin's own function"),
    pytest.param("ops.load = f\nops.load(1, 2, 3)", id="of what the plugin has replaced"),
    pytest.param("x.y()\nlen(x)\nf()()", id="of what is not known"),
    pytest.param("keep = Worker.size\nkeep(1)", id="of a value that is kept"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what"), FITTING)
def test_a_call_that_fits_holds(text: str, what: str) -> None:
    """The instance is given by what a method is called of, unless that is the class."""
    last = _told(text)[-1]

    assert last == (what, Verdict.HOLDS, "")


@pytest.mark.parametrize("text", NO_CALLS)
def test_a_call_of_something_else_is_no_contact(text: str) -> None:
    """Only what the engine has, and the plugin does not replace, is compared."""
    assert [each for each in _told(text) if each[0] != "Worker"] == []


BROKEN = [
    pytest.param("ops.load()", "load(path, device=…) needs 'path', and does not get it",
                 id="a function"),
    pytest.param("ops.load(x.device, 1)", "load(path, device=…) gets x.device as path",
                 id="at another place"),
    pytest.param("Worker()", "Worker(rank) needs 'rank', and does not get it", id="a class"),
    pytest.param("Config(0, size=1)", "Config(rank) takes no 'size'", id="fields"),
    pytest.param("Worker.step(1)", "step(self, batch) needs 'batch', and does not get it",
                 id="a method of the class"),
    pytest.param("def f(x: Fast): x.stop(1)",
                 "Fast.stop() takes no arguments by position, and gets 1", id="a method"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "why"), BROKEN)
def test_a_call_that_does_not_fit_breaks(text: str, why: str) -> None:
    """What is said has the parameters that there are."""
    [found] = _found(text)

    assert (found.verdict, found.why) == (Verdict.BREAKS, why)


OPEN = [
    pytest.param("ops.trace(1)", "only running code knows its parameters", id="a decorated one"),
    pytest.param("Made(1)", "only running code knows its parameters", id="a decorated class"),
    pytest.param("def f(x: Worker): x.step(1, 2)",
                 "Worker.step(batch) takes at most 1 arguments by position, and gets 2; "
                 "a subclass of the engine's takes it", id="of a subclass, maybe"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "why"), OPEN)
def test_a_call_that_may_fit_is_not_checked(text: str, why: str) -> None:
    """A value may be an instance of one of the engine's subclasses."""
    [found] = _found(text)

    assert (found.verdict, found.why) == (Verdict.NOT_CHECKED, why)


MAPPINGS = [
    pytest.param("ops.load(**{'path': 1, 'device': 2})", "", id="written in the call"),
    pytest.param("ops.load(**{'rank': 1})", "takes no 'rank'", id="an unknown key"),
    pytest.param("def f():\n  x = {'path': 1}\n  ops.load(**x)", "", id="a variable"),
    pytest.param("def f():\n  x = {'rank': 1}\n  ops.load(**x)", "takes no 'rank'",
                 id="a variable with an unknown key"),
    pytest.param("def f():\n  x = {**y, z: 1}\n  ops.load(**x)", "", id="keys that are computed"),
    pytest.param("def f(x): ops.load(**x)", "", id="an argument"),
    pytest.param("ops.load(**x)", "", id="outside of all functions"),
    pytest.param("ops.load(**x.y, path=1)", "", id="an attribute"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "fault"), MAPPINGS)
def test_the_keys_of_a_mapping_that_is_written_out_are_names(text: str, fault: str) -> None:
    """Those of another mapping may be any."""
    [found] = _found(text)

    assert found.why.removeprefix("load(path, device=…) ") == fault


def test_a_call_has_the_parameters_its_arguments_go_to() -> None:
    """An upgrade may give them to others."""
    [found] = _found("def f(x):\n  if x: ops.load(1)")

    assert (found.parameters, found.others, found.given) == (("path",), ("device",), "x")
    assert (found.at, found.engine_at) == ("plugin/m.py:4", "engine/ops.py:3")


def test_a_coroutine_is_awaited() -> None:
    """What was one before, and is none now, has another form."""
    [fetched, loaded] = _found("ops.fetch(1)\nops.load(1)")

    assert (fetched.form, loaded.form) == (Form.AWAITED, Form.CALLED)


UNPACKED = [
    pytest.param("a, b = ops.two(1)", [("two", Verdict.HOLDS, "")], id="as many"),
    pytest.param("a, b, c = ops.two(1)",
                 [("two", Verdict.BREAKS, "two returns 2 values; 3 are unpacked")], id="more"),
    pytest.param("a, b = ops.either(1)", [("either", Verdict.HOLDS, "")], id="maybe as many"),
    pytest.param("a, = ops.either(1)",
                 [("either", Verdict.BREAKS, "either returns 2 or 3 values; 1 are unpacked")],
                 id="never as many"),
    pytest.param("async def f(): a, b, c = await ops.pair(1)",
                 [("pair", Verdict.BREAKS, "pair returns 2 values; 3 are unpacked")],
                 id="of a coroutine"),
    pytest.param(
        "a, b = ops.any_of(1)",
        [("any_of", Verdict.NOT_CHECKED,
          "the text of the function does not say how many it returns")],
        id="of unknown length",
    ),
    pytest.param("a, *b = ops.two(1)", [], id="any number"),
    pytest.param("a = ops.two(1)", [], id="one name"),
    pytest.param("a, b = Worker(1)", [], id="of an instance"),
    pytest.param("a, b = x()", [], id="of what is not known"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), UNPACKED)
def test_a_result_has_as_many_values_as_are_unpacked(
    text: str, expected: list[tuple[str, Verdict, str]]
) -> None:
    """One of the lengths that a function may return is enough."""
    pair = pair_of(ENGINE, {"m": IMPORTS + text})
    places = Places(module_of(pair), pair.conditions)

    found = [each for place in places for each in unpackings(pair, place)]

    assert [(each.what, each.verdict, each.why) for each in found] == expected


DEFAULTS = [
    pytest.param("taking(0)", (("b", "1"), ("c", "'x'")), id="both"),
    pytest.param("taking(0, 2)", (("c", "'x'"),), id="given by position"),
    pytest.param("taking(0, c=3)", (("b", "1"),), id="given by name"),
    pytest.param("taking(*x)", (("c", "'x'"),), id="maybe given by position"),
    pytest.param("taking(0, **x)", (), id="maybe given by name"),
    pytest.param("Fields()", (("size", "1"), ("kind", "-1")), id="of fields"),
]


@pytest.mark.parametrize(("call", "expected"), DEFAULTS)
def test_a_call_has_the_plain_defaults_that_it_leaves_out(
    call: str, expected: tuple[tuple[str, str], ...]
) -> None:
    """A default that is worked out is no plain one."""
    engine = """
        from dataclasses import dataclass, field
        def taking(a, b=1, *, c="x", d=other): ...
        @dataclass
        class Fields:
            size: int = 1
            kind: int = field(default=-1)
            parts: list = field(default_factory=list)
            other: int = size + 1
        """
    pair = pair_of({"ops": engine}, {"m": f"from engine.ops import taking, Fields\n{call}"})

    [found] = [
        each for place in Places(module_of(pair), pair.conditions) for each in calls(pair, place)
    ]

    assert found.defaults == expected
