"""What a plugin puts in place of an engine's functions, methods and classes."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.contact import Contact, ContactKind, Verdict
from backend_caps.compatibility.patches import patches
from backend_caps.compatibility.places import Places
from tests.unit.compatibility.pairs import module_of, pair_of

ENGINE = {
    "ops": """
        from engine.low import copy
        def load(path, device): return 1, 2
        def unused(path): ...
        size = 1
        def run(path):
            a, b = load(path, 0)
            return copy(path)
        """,
    "low": """
        def copy(path): ...
        def read(): return x.late
        """,
    "others": """
        from engine.ops import load
        def load_all(path): load(path, 1)
        def load_other(path, other): other.load()
        """,
    "worker": """
        class Base:
            def stop(self): ...
        class Worker(Base):
            size = 1
            def __init__(self, rank, size=0): ...
            def __len__(self): ...
            def step(self, batch): ...
            @classmethod
            def make(cls, rank): ...
            @classmethod
            def build(cls): return cls.make(0)
        def run(w: Worker):
            w.step(1)
            w.stop()
            w.late
            Worker(0)
            w.build()
        """,
    "named": """
        class Worker: ...
        def load(): ...
        def run(): Worker(0, 1), load(0, 1, 2)
        def run_other(load): load(0, 1, 2)
        """,
    "lazy": "def __getattr__(name): ...",
}
IMPORTS = (
    "from engine import lazy, low, ops, worker\nfrom engine.worker import Worker\nimport torch\n"
)


def _found(text: str, engine: dict[str, str] | None = None) -> list[Contact]:
    pair = pair_of({**ENGINE, **(engine or {})}, {"m": IMPORTS + dedent(text)})
    places = Places(module_of(pair), pair.conditions)
    return [each for place in places for each in patches(pair, place)]


def _told(text: str) -> list[tuple[str, Verdict, str]]:
    return [
        (each.what, each.verdict, each.why)
        for each in _found(text)
        if each.kind is ContactKind.PATCH
    ]


PATCHED = [
    pytest.param("ops.load = own", ("engine.ops.load", Verdict.HOLDS, ""), id="a function"),
    pytest.param("ops.size = 2", ("engine.ops.size", Verdict.HOLDS, ""), id="a value"),
    pytest.param("ops.copy = own", ("engine.ops.copy", Verdict.HOLDS, ""), id="what it imports"),
    pytest.param("Worker.step = own", ("Worker.step", Verdict.HOLDS, ""), id="a method"),
    pytest.param("Worker.stop = own", ("Worker.stop", Verdict.HOLDS, ""), id="a base's method"),
    pytest.param("Worker.size = 2", ("Worker.size", Verdict.HOLDS, ""), id="a value of a class"),
    pytest.param("worker.Worker = Own", ("engine.worker.Worker", Verdict.HOLDS, ""), id="a class"),
    pytest.param("setattr(ops, 'load', own)", ("engine.ops.load", Verdict.HOLDS, ""),
                 id="by setattr"),
    pytest.param("Worker.late = 1", ("Worker.late", Verdict.HOLDS, ""), id="what something reads"),
    pytest.param("lazy.load = own",
                 ("engine.lazy.load", Verdict.NOT_CHECKED,
                  "only running code knows whether it is there"), id="what is made"),
    pytest.param("ops.gone = own",
                 ("engine.ops.gone", Verdict.UNUSED,
                  "engine.ops.gone is not there, so that nothing takes what is put"),
                 id="what is gone"),
    pytest.param("Worker.gone = own",
                 ("Worker.gone", Verdict.UNUSED,
                  "Worker.gone is not there, so that nothing takes what is put"),
                 id="a method that is gone"),
    pytest.param("def own(path): ...\nops.unused = own",
                 ("engine.ops.unused", Verdict.UNUSED,
                  "the engine has engine.ops.unused, and uses it nowhere"), id="what is not used"),
    pytest.param("def own(path, device): ...\nops.load = own",
                 ("engine.ops.load", Verdict.HOLDS, ""), id="what is used by its name"),
]  # fmt: skip
NOT_PATCHED = [
    pytest.param("torch.load = own", id="another package's"),
    pytest.param("class A: ...\nA.size = 1", id="the plugin's own"),
    pytest.param("def f(x): x.step = own", id="an object's"),
    pytest.param("load = own", id="a name"),
    pytest.param("ops.load(1)", id="a call"),
]


@pytest.mark.parametrize(("text", "expected"), PATCHED)
def test_what_is_patched_is_looked_for(text: str, expected: tuple[str, Verdict, str]) -> None:
    """A patch of what nothing reads does nothing."""
    assert _told(text) == [expected]


@pytest.mark.parametrize("text", NOT_PATCHED)
def test_another_assignment_is_no_patch(text: str) -> None:
    """A patch is of a module or a class of the engine's."""
    assert _found(text) == []


QUOTED = [
    pytest.param("import engine.ops\nx = getattr(engine.ops, 'unused')", id="as a text"),
    pytest.param("from engine import ops\nops.unused(1)", id="as an attribute"),
]


@pytest.mark.parametrize("text", QUOTED)
def test_a_function_is_used_by_its_name_or_its_text(text: str) -> None:
    """The patch of one that is takes its place."""
    [found, *_] = _found("def own(path): ...\nops.unused = own", {"user": text})

    assert (found.what, found.verdict) == ("engine.ops.unused", Verdict.HOLDS)


def test_a_patch_has_its_condition() -> None:
    """A plugin may patch some of the time."""
    [found] = _found("def patch(x):\n  if x.is_on: ops.load = x.own")

    assert (found.given, found.at) == ("x.is_on", "plugin/m.py:5")


FITTING = [
    pytest.param("def own(path, device, size=1): return 1, 2\nops.load = own", id="a function"),
    pytest.param("def own(*args, **kwargs): ...\nops.load = own", id="one that takes all"),
    pytest.param("def own(self, batch): ...\nWorker.step = own", id="a method"),
    pytest.param("def own(self): ...\nWorker.stop = own", id="a base's method"),
    pytest.param("def own(rank): ...\nWorker.make = own", id="a method of the class"),
    pytest.param(
        "@classmethod\ndef own(cls, rank): ...\nWorker.make = own",
        id="a method of the class that gets it",
    ),
    pytest.param(
        "@staticmethod\ndef own(rank): ...\nWorker.make = own",
        id="a static method for one of the class",
    ),
    pytest.param("def own(self, rank): ...\nWorker.__init__ = own", id="a constructor"),
    pytest.param(
        "def own(path): return 1, 2\nops.load = own\nops.run = print\n"
        "from engine import others\nothers.load_all = print",
        id="a function whose callers are replaced",
    ),
    pytest.param("def own(self, other): ...\nWorker.__len__ = own", id="what no call names"),
    pytest.param("def own(path, device, size): ...\nops.copy = low.copy", id="by the engine's own"),
    pytest.param("def own(path): ...\nops.copy = own", id="what the module imports"),
]
BROKEN = [
    pytest.param("def own(path): ...\nops.load = own",
                 "(path) takes at most 1 arguments by position, and gets 2; "
                 "run calls it with (path, 0)", "engine/ops.py:7", id="a function"),
    pytest.param("def own(path, device): ...\nops.copy = own",
                 "(path, device) needs 'device', and does not get it; run calls it with (path)",
                 "engine/ops.py:8", id="what the module imports"),
    pytest.param("def own(self): ...\nWorker.step = own",
                 "() takes no arguments by position, and gets 1; run calls it with (1)",
                 "engine/worker.py:14", id="a method"),
    pytest.param("def own(self, why): ...\nWorker.stop = own",
                 "(why) needs 'why', and does not get it; run calls it with ()",
                 "engine/worker.py:15", id="a base's method"),
    pytest.param("def own(self): ...\nWorker.__init__ = own",
                 "() takes no arguments by position, and gets 1; run calls it with (0)",
                 "engine/worker.py:17", id="a constructor"),
    pytest.param("@classmethod\ndef own(cls): ...\nWorker.make = own",
                 "() takes no arguments by position, and gets 1; Worker.build calls it with (0)",
                 "engine/worker.py:12", id="a method of the class"),
    pytest.param("def own(path, device): return 1, 2, 3\nops.load = own",
                 "returns 3 values; run unpacks 2", "engine/ops.py:7", id="a result"),
]  # fmt: skip


@pytest.mark.parametrize("text", FITTING)
def test_a_patch_that_takes_the_engines_calls_holds(text: str) -> None:
    """The calls of the same name that are of something else do not count."""
    assert [each for each in _found(text) if each.verdict is not Verdict.HOLDS] == []


@pytest.mark.parametrize(("text", "why", "engine_at"), BROKEN)
def test_a_patch_takes_what_the_engine_gives(text: str, why: str, engine_at: str) -> None:
    """The engine calls what the plugin puts there as it called its own."""
    [found] = [each for each in _found(text) if each.verdict is not Verdict.HOLDS]

    assert (found.verdict, found.why, found.engine_at) == (Verdict.BREAKS, why, engine_at)


UNCOMPARED = [
    pytest.param("def own(): ...\nWorker.size = own", id="of a value of a class"),
    pytest.param("def own(): ...\nops.size = own", id="of a value"),
    pytest.param("def own(): ...\nWorker.late = own", id="of what is added"),
    pytest.param("Worker.step = lambda self: 1", id="by a lambda"),
]


@pytest.mark.parametrize("text", UNCOMPARED)
def test_a_patch_without_a_function_on_both_sides_is_not_compared(text: str) -> None:
    """Neither parameters nor results are known."""
    assert {each.kind for each in _found(text)} == {ContactKind.PATCH}
