from __future__ import annotations

import contextlib
import functools
from textwrap import indent
from typing import Any

import pytest

from backend_caps.engines.sglang.live import setter_of

NAME = "needs_cpu_seq_lens"
SETS = "self.needs_cpu_seq_lens = False"
DECORATED = """
def decorated(function):
    def call(*values):
        function(*values)
    return call
"""


def _made(body: str, base: type = object) -> type:
    """Run a class statement."""
    names: dict[str, Any] = {"base": base, "contextlib": contextlib, "functools": functools}
    exec(f"{DECORATED}class Made(base):\n{indent(body, '    ')}", names)  # noqa: S102 - our own text
    made: type = names["Made"]
    return made


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(f"def __init__(self): {SETS}", id="its constructor"),
        pytest.param(
            "def __init__(self): setattr(self, 'needs_cpu_seq_lens', False)", id="by its name"
        ),
        pytest.param(
            f"def set_up(self):\n    def apply(): {SETS}\n    apply()", id="a function in a method"
        ),
        pytest.param(f"@decorated\ndef set_up(self): {SETS}", id="a decorated method"),
        pytest.param(f"@classmethod\ndef made(cls): self = cls(); {SETS}", id="a class method"),
        pytest.param(f"@staticmethod\ndef prepare(self): {SETS}", id="a static method"),
        pytest.param(f"@property\ndef ready(self): {SETS}", id="a property"),
        pytest.param(
            f"@property\ndef ready(self): pass\n@ready.setter\ndef ready(self, value): {SETS}",
            id="the setter of a property",
        ),
        pytest.param(f"@functools.cached_property\ndef ready(self): {SETS}", id="a cached one"),
        pytest.param(
            f"@contextlib.contextmanager\ndef on(self):\n    {SETS}\n    yield",
            id="a context manager",
        ),
    ],
)
def test_class_sets_what_its_own_code_stores(body: str) -> None:
    """A class sets an attribute where a function of its own body stores it."""
    made = _made(body)

    assert setter_of(made, NAME) is made


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("pass", id="nothing"),
        pytest.param(
            "def forward(self): return self.needs_cpu_seq_lens or getattr(self, '{NAME}')",
            id="a class that only reads it",
        ),
    ],
)
def test_setter_is_the_nearest_class_that_sets(body: str) -> None:
    """What only reads an attribute, or has no code, has it from its base's constructor."""
    base = _made(f"def __init__(self): {SETS}")

    assert setter_of(_made(body.format(NAME=NAME), base), NAME) is base


def test_attribute_that_no_code_stores_has_no_setter() -> None:
    """What is set from outside has no class that sets it."""
    made = _made("step = functools.partial(print)\ndef forward(self): self.ready = True")

    assert setter_of(made, NAME) is None


def test_name_that_a_function_closes_over_may_not_be_there_yet() -> None:
    """A function may close over what has no value yet."""

    class Made:
        def forward(self) -> None:
            late()

    found = setter_of(Made, NAME)
    late = print

    assert found is None
