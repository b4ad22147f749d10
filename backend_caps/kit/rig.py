"""Where cases run: a backend on a device, within a deadline, with a plain run to compare with.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.

A signal interrupts Python code of a backend that waits or loops. Native code that keeps the
interpreter is not interrupted: `backend-caps check` ends its process from outside
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
from backend_caps.kit.scenarios import Scenario
from backend_caps.kit.scenes import Pools, Scene
from backend_caps.kit.subject import Subject
from backend_caps.relay.streams import DeviceStreams
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.simulator import DEVICE_NAME, Schedule, Simulation, StarvationWarning, simulate

_T = TypeVar("_T")


CASE_DEADLINE_S = 300.0
"""How long a case may take, in seconds: many times what one takes in an interpreted kernel."""
_STEPS_WITHIN = 100
"""Steps of a case that looks for growth, up to which it has no longer than others."""
_AGAIN_S = 1.0
"""How soon it is raised again, where a destructor or a bare `except` swallowed it."""


_MOST_SHOWN = 6
"""Numbers of a list in a fault."""


class OverdueError(BaseException):
    """A deadline has passed. It is no `Exception`, for backends and checks catch those."""


def deadline_of(num_steps: int, deadline_s: float) -> float:
    """Return how long a case may take: longer where it goes on for many steps."""
    return deadline_s * max(1.0, num_steps / _STEPS_WITHIN)


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


@dataclass(kw_only=True)
class Rig:
    """A backend on a device."""

    subject: Subject
    device: str = DEVICE_NAME
    """`sim`, `cpu` or `cuda`."""
    deadline_s: float = CASE_DEADLINE_S
    """How long each case may take."""

    @contextmanager
    def running(
        self, schedule: Schedule | str = "eager", *, check_races: bool = False
    ) -> Iterator[Simulation | None]:
        """Run device work in an order; on a real device it is the device's own, and there is none.

        Args:
            schedule: the order, on the simulated device; it may starve a stream of the backend's
                own, where it has one.
            check_races: feed torch's stream sanitizer, on the simulated device.
        """
        with torch.no_grad():
            if self.device != DEVICE_NAME:
                yield None
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", StarvationWarning)
                with simulate(schedule, check_races=check_races) as simulation:
                    yield simulation

    def build(self, pools: Pools) -> AttentionBackend:
        """Build a new backend from a scene's pools.

        Raises:
            Exception: whatever its constructor raises.
        """
        build: Callable[..., AttentionBackend] = self.subject.build
        return build(pools)

    def difference(self, found: Tensor, expected: Tensor, scenario: Scenario) -> str | None:
        """Describe how an output differs from another beyond the tolerance of a scenario's dtype.

        found, expected  [T, Hq, Dv], host
        """
        return difference(found, expected, self.subject.tolerance(scenario.dtype))

    def streams(self) -> DeviceStreams:
        """Make streams of the device; within `running`."""
        return DeviceStreams(self.device)

    def supply(self, scene: Scene) -> Scene:
        """Give a scene the host lengths that an engine brings for the subject's claims."""
        phase = scene.batch.mode.phase
        return supplied(scene, self.subject.claim_as(HostSeqLens, "host_seq_lens", phase=phase))

    def eager(self, scene: Scene) -> Tensor:
        """Run a scene in a new backend, as an engine would for what it claims, within `running`.

        returns  [T, Hq, Dv], host
        """
        return on_host(self.supply(scene).on(self.device).run(self.build))

    def plain(self, scene: Scene) -> Tensor:
        """Run a scene plainly: eagerly, in plain order, in a new backend, with every host length.

        returns  [T, Hq, Dv], host

        Raises:
            Exception: whatever the backend raises.
        """
        with self.running():
            return on_host(supplied(scene, HostSeqLens.EXACT).on(self.device).run(self.build))

    def baseline(self, scene: Scene) -> Tensor:
        """Run a scene plainly, to compare with.

        returns  [T, Hq, Dv], host

        Raises:
            BaselineError: it raised, or its output has a NaN or an infinity.
        """
        return baseline_of(lambda: self.plain(scene))


def baseline_of(run: Callable[[], _T]) -> _T:
    """Run what others are compared with: an output, [T, Hq, Dv] on the host, or something else.

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
    """Leave a batch the host lengths of a level; a prefill's the scheduler knows in any case.

    bounds  [B] int64, host  in place of the lengths; None: these are exact
    """
    batch = scene.batch
    exact = batch.seq_lens.cpu() if batch.seq_lens_cpu is None else batch.seq_lens_cpu
    lengths = exact if bounds is None else bounds
    has_mirror = level is HostSeqLens.EXACT or batch.mode.phase is Phase.PREFILL
    own = replace(
        batch,
        seq_lens_cpu=lengths.clone() if has_mirror else None,
        seq_lens_sum=int(lengths.sum()) if has_mirror else None,
        seq_lens_cpu_upper_bound=None if level is HostSeqLens.NONE else lengths.clone(),
    )
    return replace(scene, batch=own)


def on_host(tensor: Tensor) -> Tensor:
    """Bring a tensor to the host, of its own memory; the host waits."""
    return tensor.detach().to("cpu", copy=True)


def difference(found: Tensor, expected: Tensor, tolerance: float) -> str | None:
    """Describe how one output differs from another; None where it is within the tolerance.

    found, expected  [T, Hq, Dv], host
    tolerance        absolute and relative
    """
    found, expected = found.double(), expected.double()
    if torch.allclose(found, expected, atol=tolerance, rtol=tolerance):
        return None
    if not found.isfinite().all():
        return f"NaN or infinity in the outputs of tokens {some(_rows_with(~found.isfinite()))}"
    error = (found - expected).abs()
    rows = some(_rows_with(error > tolerance * (1 + expected.abs())))
    return f"tokens {rows} differ by up to {error.max():.2g}, allowed is {tolerance:.2g}"


def _rows_with(wrong: Tensor) -> list[int]:
    """List the rows that have an entry which is true; [N, ...] bool."""
    rows: list[int] = wrong.flatten(1).any(1).nonzero().flatten().tolist()
    return rows


def some(numbers: Sequence[int]) -> str:
    """List the first of some numbers, and count the others."""
    listed, more = ", ".join(map(str, numbers[:_MOST_SHOWN])), len(numbers) - _MOST_SHOWN
    return listed if more <= 0 else f"{listed} and {more} more"


def changed_rows(before: Tensor, now: Tensor) -> list[int]:
    """List the rows of which a bit changed; both [N, ...], host."""
    one, other = (own.contiguous().view(torch.uint8).reshape(len(own), -1) for own in (before, now))
    return _rows_with(one != other)


def changed_slots(before: Pools, now: Pools) -> set[int]:
    """List slots whose keys or values changed; `before` is on the host, which waits for `now`."""
    pairs = (before.keys, now.keys), (before.values, now.values)
    return {slot for old, new in pairs for slot in changed_rows(old, on_host(new))}
