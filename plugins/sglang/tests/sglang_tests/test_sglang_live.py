from __future__ import annotations

import contextlib
import functools
from textwrap import indent
from typing import Any

from backend_caps_sglang.live import setter_of

from tests.unit.engines.tables import table

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


@table("sglang_live_code", "class_sets_what_its_own_code_stores")
def test_class_sets_what_its_own_code_stores(body: str) -> None:
    """A class sets an attribute where a function of its own body stores it."""
    made = _made(body)

    assert setter_of(made, NAME) is made


@table("sglang_live_code", "setter_is_the_nearest_class_that_sets")
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
