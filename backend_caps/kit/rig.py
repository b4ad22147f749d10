"""Where cases run: a backend, on a device, with a plain run of it to compare with.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.kit.deadline import CASE_DEADLINE_S
from backend_caps.kit.errors import BaselineError
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.relay.streams import DeviceStreams
from backend_caps.simulator import DEVICE_NAME, Schedule, Simulation, simulate


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
            schedule: the order, on the simulated device.
            check_races: feed torch's stream sanitizer, on the simulated device.
        """
        with torch.no_grad():
            if self.device != DEVICE_NAME:
                yield None
                return
            with simulate(schedule, check_races=check_races) as simulation:
                yield simulation

    def streams(self) -> DeviceStreams:
        """Make streams of the device; within `running`."""
        return DeviceStreams(self.device)

    def supply(self, scene: Scene) -> Scene:
        """Give a scene the host lengths that an engine brings to who claims what this one does."""
        phase = scene.batch.mode.phase
        level = self.subject.claim("host_seq_lens", phase=phase)
        assert isinstance(level, HostSeqLens), "a level is one of the scale"
        return supplied(scene, level)

    def eager(self, scene: Scene) -> Tensor:
        """Run a scene in a new backend, as an engine would for what it claims, within `running`.

        returns  [T, Hq, Dv], host
        """
        output = self.supply(scene).on(self.device).run(self.subject.build)
        return on_host(output)

    def plain(self, scene: Scene) -> Tensor:
        """Run a scene plainly: eagerly, in plain order, in a new backend, with every host length.

        returns  [T, Hq, Dv], host

        Raises:
            Exception: whatever the backend raises.
        """
        with self.running():
            output = supplied(scene, HostSeqLens.EXACT).on(self.device).run(self.subject.build)
            return on_host(output)

    def baseline(self, scene: Scene) -> Tensor:
        """Run a scene plainly, to compare with.

        returns  [T, Hq, Dv], host

        Raises:
            BaselineError: it raised, or its output has a NaN or an infinity.
        """
        return baseline_of(lambda: self.plain(scene))


def baseline_of(run: Callable[[], Tensor]) -> Tensor:
    """Run what others are compared with: [T, Hq, Dv], host.

    Raises:
        BaselineError: it raised, or its output has a NaN or an infinity.
    """
    try:
        output = run()
    except Exception as error:  # a plugin raises what it likes
        raise BaselineError(problem=f"{type(error).__name__}: {error}") from error
    if not output.isfinite().all():
        raise BaselineError(problem="NaN or infinity in its output")
    return output


def supplied(scene: Scene, level: HostSeqLens) -> Scene:
    """Leave a batch the host lengths of a level; a prefill's the scheduler knows in any case."""
    batch = scene.batch
    exact = batch.seq_lens.cpu() if batch.seq_lens_cpu is None else batch.seq_lens_cpu
    has_mirror = level is HostSeqLens.EXACT or batch.mode.phase is Phase.PREFILL
    return replace(
        scene,
        batch=replace(
            batch,
            seq_lens_cpu=exact.clone() if has_mirror else None,
            seq_lens_sum=int(exact.sum()) if has_mirror else None,
            seq_lens_cpu_upper_bound=None if level is HostSeqLens.NONE else exact.clone(),
        ),
    )


def on_host(tensor: Tensor) -> Tensor:
    """Bring a tensor to the host, of its own memory; the host waits."""
    return tensor.detach().to("cpu", copy=True)


def difference(found: Tensor, expected: Tensor, tolerance: float) -> str | None:
    """Say how far one output is from another; None where it is within the tolerance of it.

    found, expected  [T, Hq, Dv], host
    tolerance        absolute and relative
    """
    found, expected = found.double(), expected.double()
    if torch.allclose(found, expected, atol=tolerance, rtol=tolerance):
        return None
    if not found.isfinite().all():
        rows = (~found.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        return f"NaN or infinity in the outputs of tokens {_some(rows)}"
    error = (found - expected).abs()
    rows = (error > tolerance * (1 + expected.abs())).flatten(1).any(1).nonzero().flatten().tolist()
    return f"tokens {_some(rows)} differ by up to {error.max():.2g}, allowed is {tolerance:.2g}"


def _some(rows: list[int]) -> str:
    most = 6
    listed = ", ".join(map(str, rows[:most]))
    return listed if len(rows) <= most else f"{listed} and {len(rows) - most} more"
