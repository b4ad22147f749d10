"""Trace functions stay out of the simulator's code while lines are recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

import pytest
import torch

from backend_caps.simulator import simulate
from backend_caps.simulator.trace_function import call_traced, recorded_kernels, untraced


@pytest.fixture
def traced() -> Iterator[list[str]]:
    """Set a trace function that lists the modules of calls."""
    seen: list[str] = []

    def trace(frame: FrameType, _event: str, _value: object) -> None:
        seen.append(frame.f_globals.get("__name__", ""))

    before = sys.gettrace()
    sys.settrace(trace)
    yield seen
    sys.settrace(before)


def _add() -> list[float]:
    with simulate():
        return (torch.ones(2, device="sim") + 1).cpu().tolist()


def test_operators_are_not_traced_while_lines_are_recorded(traced: list[str]) -> None:
    """Outside of a recording a debugger sees all of the simulator."""
    _add()
    everything = {*traced}
    traced.clear()

    with recorded_kernels():
        assert _add() == [2.0, 2.0]

    assert "backend_caps.simulator.dispatch" in everything
    assert "backend_caps.simulator.dispatch" not in traced
    assert __name__ in traced


def test_trace_function_is_set_again_for_others_code(traced: list[str]) -> None:
    """Also behind an error, and within another suspension."""

    @untraced
    def fail() -> None:
        raise ValueError(str(sys.gettrace()))

    def within() -> list[bool]:
        before = sys.gettrace() is not None
        with pytest.raises(ValueError, match="None"):
            fail()
        return [before, sys.gettrace() is not None]

    @untraced
    def run() -> list[bool]:
        states = [sys.gettrace() is None]
        states += call_traced(within)
        return [*states, sys.gettrace() is None]

    tracer = sys.gettrace()
    with recorded_kernels():
        assert run() == [True] * 4
    assert sys.gettrace() is tracer
    assert traced


def test_nothing_is_set_where_nothing_was_suspended() -> None:
    """Most runs have no trace function."""
    assert call_traced(sys.gettrace) is sys.gettrace()
