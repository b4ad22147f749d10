"""Steps on a GPU, by the clock of `torch.profiler`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from backend_caps.insight.trace.asked import SETTLING, Asked, Forwards, started
from backend_caps.insight.trace.kineto import MARK, STEP, read_export
from backend_caps.insight.trace.measured import measured
from backend_caps.insight.trace.regions import told_regions
from backend_caps.report.trace_timeline import Timeline
from backend_caps.runtime.engine import Engine

PROFILER_SAYS = (
    "torch.profiler's, on the host and on the device; marking regions slows the host down"
)
"""What times on this clock mean."""


class Marks:
    """Mark regions of the host for the profiler."""

    def __init__(self) -> None:
        self._open: list[ExitStack] = []

    def called(self) -> None:
        """Let it pass: this clock runs by itself."""

    def enter(self, name: str) -> None:
        """Begin a region."""
        self._open.append(ExitStack())
        self._open[-1].enter_context(record_function(f"{MARK}{name}"))

    def leave(self) -> None:
        """End the innermost region."""
        self._open.pop().close()


def profiled(asked: Asked) -> Timeline:
    """Record steps on a device that the profiler knows."""
    with started(asked) as engine, TemporaryDirectory(prefix="backend-caps-") as folder:
        file = Path(folder) / "export.json"
        level = asked.run.plan.host_seq_lens.value
        export_steps(engine, asked.num_steps, file)
        return measured(read_export(file), level=level, num_steps=asked.num_steps)


def export_steps(engine: Engine, num_steps: int, file: Path) -> None:
    """Run steps of an engine that has requests, and write what the profiler tells of them."""
    marks = Marks()
    for backends in engine.all_backends:
        backends.observer = Forwards(marks)
    for _ in range(SETTLING - 1):
        engine.step()
    is_cuda = engine.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    # Without this the profiler keeps what streams wait for to itself.
    settings = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)  # noqa: SLF001
    with profile(activities=activities, experimental_config=settings) as profiler:
        with told_regions(marks):
            for step in range(num_steps + 2):  # one before those that are shown, and one behind
                marks.enter(f"{STEP}{step}")
                engine.step()
                marks.leave()
        engine.streams.synchronize()
    profiler.export_chrome_trace(str(file))
