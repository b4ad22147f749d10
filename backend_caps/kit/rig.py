"""Run cases: a backend on a device, within a deadline, and its baseline run.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.

A signal interrupts a backend's Python code that waits or loops. Native code that holds the GIL is
not interrupted: for it `backend-caps check` ends the whole process
(`supervisor.Log.end_process_after`).
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.process_state import defaults_kept
from backend_caps.kit.scenarios import Scenario
from backend_caps.kit.scenes import Pools, Scene
from backend_caps.kit.subject import Subject
from backend_caps.relay.streams import DeviceStreams
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.simulator import DEVICE_NAME, Schedule, Simulation, StarvationWarning, simulate

_T = TypeVar("_T")


CASE_DEADLINE_S = 300.0
"""Seconds that a case may take: many times the time of an interpreted Triton kernel."""
_STEPS_WITHIN = 100
"""Steps up to which a case has the usual deadline; with more it gets proportionally longer."""
_AGAIN_S = 1.0
"""Seconds until the error is raised again, as a destructor or a bare `except` may swallow it."""


_MOST_SHOWN = 6
"""Numbers that a fault lists before it counts the others."""


class OverdueError(BaseException):
    """A deadline has passed. A `BaseException`, as backends and checks catch `Exception`."""


def deadline_of(num_steps: int, deadline_s: float) -> float:
    """Return the seconds that a case may take: more where it has many steps."""
    return deadline_s * max(1.0, num_steps / _STEPS_WITHIN)


@contextmanager
def ends_within(deadline_s: float) -> Iterator[None]:
    """Raise in a `with` block that has not ended in time.

    Python runs signal handlers in the main thread alone, so in others nothing is raised. A process
    has one such timer: one that runs already, such as pytest-timeout's, replaces this one where it
    is shorter, and else continues after the block.

    Raises:
        OverdueError: in the block, at any line.
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
        if not is_over:  # a signal may arrive between the block's end and the timer's
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


@dataclass(kw_only=True)
class Rig:
    """A backend on a device."""

    subject: Subject
    device: str = DEVICE_NAME
    """`sim`, `cpu` or `cuda`."""
    deadline_s: float = CASE_DEADLINE_S
    """Seconds that each case may take."""

    @contextmanager
    def running(
        self, schedule: Schedule | str = "eager", *, check_races: bool = False
    ) -> Iterator[Simulation | None]:
        """Run device work on the simulated device by a schedule; yield None on a real device.

        Args:
            schedule: the order of the work, on the simulated device.
            check_races: whether to feed torch's stream sanitizer, on the simulated device.
        """
        with torch.no_grad(), defaults_kept():
            if self.device != DEVICE_NAME:
                yield None
                return
            with warnings.catch_warnings():
                # A schedule may starve a stream that this backend never makes.
                warnings.simplefilter("ignore", StarvationWarning)
                with simulate(schedule, check_races=check_races) as simulation:
                    yield simulation

    def build(self, pools: Pools) -> AttentionBackend:
        """Build a new backend from a scene's pools.

        Raises:
            Exception: any that its constructor raises.
        """
        # `...`, as scenes' pools have only the members of `BackendSite` that backends call.
        build: Callable[..., AttentionBackend] = self.subject.build
        return build(pools)

    def difference(self, output: Tensor, expected: Tensor, scenario: Scenario) -> str | None:
        """Describe how an output differs from another beyond the tolerance of a scenario's dtype.

        output, expected  [T, Hq, Dv], host
        """
        return difference(output, expected, self.tolerance(scenario))

    def tolerance(self, scenario: Scenario) -> float:
        """Return the absolute and relative tolerance of a scenario's outputs."""
        return self.subject.tolerance(scenario.dtype) * scenario.numbers.looseness

    def streams(self) -> DeviceStreams:
        """Make streams of the device; within `running`."""
        return DeviceStreams(self.device)

    def supply(self, scene: Scene) -> Scene:
        """Give a scene the host lengths that an engine supplies for the backend's claims."""
        phase = scene.batch.mode.phase
        return supplied(scene, self.subject.claim_as(HostSeqLens, "host_seq_lens", phase=phase))

    def eager(self, scene: Scene) -> Tensor:
        """Run a scene in a new backend, with the claimed host lengths, within `running`.

        returns  [T, Hq, Dv], host
        """
        return on_host(self.supply(scene).on(self.device).run(self.build))

    def plain(self, scene: Scene) -> Tensor:
        """Run a scene in a new backend, eagerly, with every host length.

        returns  [T, Hq, Dv], host

        Raises:
            Exception: any that the backend raises.
        """
        with self.running():
            return on_host(supplied(scene, HostSeqLens.EXACT).on(self.device).run(self.build))

    def baseline(self, scene: Scene) -> Tensor:
        """Run a scene by `plain`, as the baseline of a comparison.

        returns  [T, Hq, Dv], host

        Raises:
            BaselineError: the backend raised, or its output has a NaN or an infinity.
        """
        return baseline_of(lambda: self.plain(scene))


def baseline_of(run: Callable[[], _T]) -> _T:
    """Run the baseline of a comparison: an output, [T, Hq, Dv] on the host, or anything else.

    Raises:
        BaselineError: it raised, or its output has a NaN or an infinity.
    """
    try:
        output = run()
    except Exception as error:  # a plugin raises what it likes
        raise BaselineError(problem=f"{type(error).__name__}: {error}") from error
    if isinstance(output, Tensor) and not output.isfinite().all():
        raise BaselineError(problem="NaN or infinity in its output")
    return output


def supplied(scene: Scene, level: HostSeqLens, bounds: Tensor | None = None) -> Scene:
    """Keep the host lengths of a level in a batch, and set the others to None.

    A prefill keeps all: its lengths come from the scheduler, without a host wait.

    bounds  [B] int64, host  in place of the lengths; None: the exact lengths
    """
    batch = scene.batch
    exact = batch.seq_lens.cpu() if batch.seq_lens_cpu is None else batch.seq_lens_cpu
    lengths = exact if bounds is None else bounds
    has_mirror = level is HostSeqLens.EXACT or batch.mode.phase is Phase.PREFILL
    batch = replace(
        batch,
        seq_lens_cpu=lengths.clone() if has_mirror else None,
        seq_lens_sum=int(lengths.sum()) if has_mirror else None,
        seq_lens_cpu_upper_bound=None if level is HostSeqLens.NONE else lengths.clone(),
    )
    return replace(scene, batch=batch)


def on_host(tensor: Tensor) -> Tensor:
    """Copy a tensor to the host, which waits."""
    return tensor.detach().to("cpu", copy=True)


def difference(output: Tensor, expected: Tensor, tolerance: float) -> str | None:
    """Describe how one output differs from another; None where it is within the tolerance.

    output, expected  [T, Hq, Dv], host
    tolerance         absolute and relative
    """
    output, expected = output.double(), expected.double()
    if torch.allclose(output, expected, atol=tolerance, rtol=tolerance):
        return None
    if not output.isfinite().all():
        return f"NaN or infinity in the outputs of tokens {some(_rows_with(~output.isfinite()))}"
    error = (output - expected).abs()
    rows = some(_rows_with(error > tolerance * (1 + expected.abs())))
    return f"tokens {rows} differ by up to {error.max():.2g}, allowed is {tolerance:.2g}"


def _rows_with(wrong: Tensor) -> list[int]:
    """List the rows with a true entry; `wrong` is [N, ...] bool."""
    rows: list[int] = wrong.flatten(1).any(1).nonzero().flatten().tolist()
    return rows


def some(numbers: Sequence[int]) -> str:
    """List the first few of some numbers, and count the others."""
    listed, more = ", ".join(map(str, numbers[:_MOST_SHOWN])), len(numbers) - _MOST_SHOWN
    return listed if more <= 0 else f"{listed} and {more} more"


def changed_rows(before: Tensor, now: Tensor) -> list[int]:
    """List the rows with a changed bit; both [N, ...], host."""
    # Compared as bytes: NaN is unequal to itself, and -0.0 is equal to 0.0.
    old, new = (kv.contiguous().view(torch.uint8).reshape(len(kv), -1) for kv in (before, now))
    return _rows_with(old != new)


def changed_slots(before: Pools, now: Pools) -> set[int]:
    """List slots with changed keys or values; `before` is on the host, which waits for `now`."""
    pairs = (before.key_buffers, now.key_buffers), (before.value_buffers, now.value_buffers)
    return {
        slot
        for old, new in pairs
        for slot in changed_rows(old.transpose(0, 1), on_host(new).transpose(0, 1))
    }
