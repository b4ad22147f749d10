"""Steps on the simulated device, by the clock of a recorder."""

from __future__ import annotations

from backend_caps.insight.trace.asked import SETTLING, Asked, Forwards, started
from backend_caps.insight.trace.blocks import Stretch, timeline_of
from backend_caps.insight.trace.recorder import Recorder
from backend_caps.insight.trace.regions import told_regions
from backend_caps.relay.streams import StreamLike
from backend_caps.report.trace_timeline import COPY, FORWARD, HOST_COPY, SCHEDULE, Timeline
from backend_caps.runtime.engine import Engine
from backend_caps.simulator import Simulation, simulate
from backend_caps.simulator.streams import Stream


def simulated(asked: Asked) -> Timeline:
    """Record steps on the simulated device."""
    with simulate("eager") as simulation, started(asked, simulation) as engine:
        recorder = Recorder(_lanes(engine))
        for backends in engine.all_backends:
            backends.observer = Forwards(recorder)
        simulation.watcher = recorder
        with told_regions(recorder):
            return _recorded(engine, simulation, recorder, asked)


def _recorded(engine: Engine, simulation: Simulation, recorder: Recorder, asked: Asked) -> Timeline:
    for step in range(1 - SETTLING, 1):
        recorder.step = step
        engine.step()
    before, begin_ns = simulation.counts, recorder.now_ns
    for step in range(1, asked.num_steps + 1):
        recorder.step = step
        recorder.enter(f"step {step}")
        engine.step()
        recorder.leave()
    counts, end_ns = simulation.counts - before, recorder.now_ns
    recorder.step += 1
    engine.step()  # it lets the last gaps and arrows of the steps before end
    copy, level = engine.relay.copy_stream, asked.run.plan.host_seq_lens.value
    return timeline_of(
        Stretch(level=level, begin_ns=begin_ns, end_ns=end_ns, num_steps=asked.num_steps),
        lanes=recorder.lanes,
        host=recorder.host_spans,
        ran=recorder.ran,
        arrows=recorder.arrows,
        bytes_to_host=counts.bytes_to_host,
        bytes_of_lengths=0 if copy is None else counts.bytes_to_host_on.get(_handle(copy), 0),
    )


def _lanes(engine: Engine) -> dict[int, str]:
    """Name the streams of an engine, from the host down."""
    on, copy = engine.step_streams, engine.relay.copy_stream
    named = [(on.schedule, SCHEDULE), (on.forward, FORWARD)]
    if copy is not None:
        named.append((copy, COPY))
    named.append((on.host_copy, HOST_COPY))
    return {_handle(stream): lane for stream, lane in named}


def _handle(stream: StreamLike) -> int:
    assert isinstance(stream, Stream), "the engine runs on the simulated device"
    return stream.handle
