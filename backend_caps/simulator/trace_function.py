"""What a counter of lines needs of the simulator: no traces of its own code, and lines of kernels.

Python's trace function slows down all code that runs while it is set, most of it the simulator's.
Kernels are never run by Python, so no trace function sees their lines.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from backend_caps.simulator.errors import Site

if TYPE_CHECKING:
    from _typeshed import TraceFunction

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Traceable(Protocol):
    """A block of a kernel's operations."""

    @property
    def lines(self) -> frozenset[Site]:
        """The lines of its operations, with those that call them."""


@dataclass(slots=True)
class KernelRecord:
    """Which blocks of kernels ran."""

    blocks: set[Traceable] = field(default_factory=set)

    @property
    def lines(self) -> frozenset[Site]:
        """The lines of their operations."""
        return frozenset[Site]().union(*(block.lines for block in self.blocks))


class _State:
    record: KernelRecord | None = None


class _Suspended(threading.local):
    function: TraceFunction | None = None


_state, _suspended = _State(), _Suspended()


@contextmanager
def recorded_kernels() -> Iterator[KernelRecord]:
    """Record blocks of kernels in a `with` block, and keep trace functions out of the simulator."""
    before, _state.record = _state.record, KernelRecord()
    try:
        yield _state.record
    finally:
        _state.record = before


def note_block(block: Traceable) -> None:
    """Record that a block of a kernel runs."""
    if _state.record is not None:
        _state.record.blocks.add(block)


def untraced(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function suspend the trace function while it runs, where lines are recorded."""

    @wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        tracer = None if _state.record is None else sys.gettrace()
        if tracer is None:
            return function(*args, **kwargs)
        before, _suspended.function = _suspended.function, tracer
        sys.settrace(None)
        try:
            return function(*args, **kwargs)
        finally:
            _suspended.function = before
            # Functions of Python are as often entered as left under the trace function, which keeps
            # a stack of them. Coverage's takes up the lines of a frame behind the next call.
            sys.settrace(tracer)
            _do_nothing()

    return run


def call_traced(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function of others under the trace function that was suspended."""
    tracer = _suspended.function
    if tracer is None:
        return function(*args, **kwargs)
    _suspended.function = None
    sys.settrace(tracer)
    try:
        return function(*args, **kwargs)
    finally:
        sys.settrace(None)
        _suspended.function = tracer


def _do_nothing() -> None:
    pass
