"""A deadline for code of a backend, which may never return.

A signal interrupts Python code that waits or loops. Native code that keeps the interpreter is not
interrupted: `backend-caps check` ends its process from outside (`watching.Log.end_process_after`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CASE_DEADLINE_S = 300.0
"""How long a case may take, in seconds: many times what one takes in an interpreted kernel."""
_STEPS_WITHIN = 100
"""Steps of a case that looks for growth, up to which it has no longer than others."""
_AGAIN_S = 1.0
"""How soon it is raised again, where a destructor or a bare `except` swallowed it."""


class OverdueError(BaseException):
    """A deadline has passed. It is no `Exception`, for backends and checks catch those."""


def deadline_of(num_steps: int, deadline_s: float) -> float:
    """Return how long a case may take: longer where it goes on for many steps."""
    return deadline_s * max(1.0, num_steps / _STEPS_WITHIN)


def did_not_end(deadline_s: float) -> str:
    """Say in a fault that a case was ended by its deadline."""
    return f"did not end within {deadline_s:g} s"


@contextmanager
def ends_within(deadline_s: float) -> Iterator[None]:
    """Raise where a `with` block has not ended in time.

    Python gives signals to the main thread alone, so elsewhere nothing is raised. A timer that runs
    already, such as that of pytest-timeout, goes on afterwards, and counts where it is shorter.

    Raises:
        OverdueError: in the block, at whatever it does.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer"):
        yield
        return
    started, is_over = time.monotonic(), False
    left_s, interval_s = signal.getitimer(signal.ITIMER_REAL)
    if 0 < left_s <= deadline_s:
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not is_over:  # a signal may come just before the timer is stopped
            raise OverdueError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, deadline_s, _AGAIN_S)
    try:
        yield
    finally:
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left_s:
            left_s = max(left_s - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)
