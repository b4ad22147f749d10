"""The mutants: every wait, record, keep-alive, out-of-place value, barrier and synchronize.

`test_mutants` holds the table to the code: whatever waits there has a mutant here.
"""

from __future__ import annotations

from tests.races.mutation import Kind, Mutant

_LAUNCH = "StepLauncher.launch"
_TO_HOST = "StepLauncher._to_host"
_STEP_WITHOUT_TENSORS = """batch=type(own)(
    memory=own.memory, staging=own.staging, mode=own.mode, requests=own.requests,
    generations=own.generations, samples=own.samples, seq_lens_cpu=own.seq_lens_cpu,
    req_pool_indices=own.req_pool_indices_cpu, req_pool_indices_cpu=own.req_pool_indices_cpu,
    seq_lens=own.req_pool_indices_cpu,
)"""

_STEP = (
    Mutant(
        name="forward waits for schedule",
        kind=Kind.WAIT,
        file="backend_caps/runtime/step.py",
        function=_LAUNCH,
        source="self._on.forward.wait_stream(self._on.schedule)",
        protects="what the batch was built of, from being read before it is written",
    ),
    Mutant(
        name="coarse barrier",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/step.py",
        function="StepLauncher.barrier",
        source="self._on.schedule.wait_stream(self._on.forward)",
        protects="the page table, from the next batch's entries while a forward reads it",
    ),
    Mutant(
        name="fine barrier",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/step.py",
        function="StepLauncher.barrier",
        source="self._on.schedule.wait_event(step.reads_done)",
        protects="the page table, from the next batch's entries while a replay reads it",
    ),
    Mutant(
        name="barrier of the overlapped loop",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/scheduler.py",
        function="Scheduler.step_overlapped",
        source="self._launcher.barrier(step)",
        protects="the page table, from the next batch's entries",
    ),
    Mutant(
        name="host waits for tokens",
        kind=Kind.WAIT,
        file="backend_caps/runtime/step.py",
        function="StepLauncher.tokens",
        source="step.copied.synchronize()",
        protects="the host, from pinned memory that nothing was copied to",
    ),
    Mutant(
        name="host copy waits for forward",
        kind=Kind.WAIT,
        file="backend_caps/runtime/step.py",
        function=_TO_HOST,
        source="self._on.host_copy.wait_stream(self._on.forward)",
        protects="the copy to the host, from tokens that are not chosen yet",
    ),
    Mutant(
        name="copied is recorded",
        kind=Kind.RECORD,
        file="backend_caps/runtime/step.py",
        function=_TO_HOST,
        source="copied.record(self._on.host_copy)",
        protects="the host: an event that was never recorded is no wait",
    ),
    Mutant(
        name="copied is recorded behind the copy",
        kind=Kind.RECORD,
        file="backend_caps/runtime/step.py",
        function=_TO_HOST,
        source="tokens_cpu.copy_(tokens, non_blocking=True); copied.record(self._on.host_copy)",
        replacement=(
            "copied.record(self._on.host_copy); tokens_cpu.copy_(tokens, non_blocking=True)"
        ),
        protects="the host, from waiting for too little",
    ),
    Mutant(
        name="tokens without a copy are recorded",
        kind=Kind.RECORD,
        file="backend_caps/runtime/step.py",
        function=_TO_HOST,
        source="copied.record(self._on.forward)",
        protects="the host, where nothing is pinned, from reading tokens on another stream",
    ),
    Mutant(
        name="step keeps its tokens",
        kind=Kind.KEEP_ALIVE,
        file="backend_caps/runtime/step.py",
        function=_LAUNCH,
        source="tokens=output.tokens",
        replacement="tokens=tokens_cpu",
        protects="tokens of the forward stream, which the host-copy stream reads",
    ),
    Mutant(
        name="step keeps its batch",
        kind=Kind.KEEP_ALIVE,
        file="backend_caps/runtime/step.py",
        function=_LAUNCH,
        source="batch=own",
        replacement=_STEP_WITHOUT_TENSORS,
        protects="lengths of the schedule stream, which sampling reads last of all",
    ),
)

_BATCH = (
    Mutant(
        name="device lengths grow out of place",
        kind=Kind.OUT_OF_PLACE,
        file="backend_caps/runtime/batch.py",
        function="ScheduleBatch.prepare_for_decode",
        source="self.seq_lens = self.seq_lens + 1",
        replacement="self.seq_lens += 1",
        protects="the lengths of the running forward, whose sampling reads them behind the barrier",
    ),
    Mutant(
        name="mirror grows out of place",
        kind=Kind.OUT_OF_PLACE,
        file="backend_caps/runtime/batch.py",
        function="ScheduleBatch.prepare_for_decode",
        source="self.seq_lens_cpu = mirror + 1",
        replacement="self.seq_lens_cpu = mirror.add_(1)",
        protects="the mirror of the step before, which its result is told by",
    ),
)

_ENGINE = (
    Mutant(
        name="failed step is waited for",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.step",
        source="self.streams.synchronize()",
        protects="what a failed step has enqueued, from its tensors going with it",
    ),
    Mutant(
        name="deleted engine is waited for",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.__init__",
        source="finalize(self, self.streams.synchronize)",
        replacement="finalize(self, list)",
        protects="a step that runs, from weights and pools going with the engine",
    ),
    Mutant(
        name="capture waits for the model",
        kind=Kind.WAIT,
        file="backend_caps/runtime/graphs/capture.py",
        function="capture_graphs",
        source="stream.wait_stream(streams.current_stream())",
        protects="the pools, from the forward that warms up before they are made",
    ),
    Mutant(
        name="drain waits for the device",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.drain",
        source="self.streams.synchronize()",
        protects="whoever takes the engine apart while work of it is under way",
    ),
)

_GRAPHS = (
    Mutant(
        name="reads done are recorded",
        kind=Kind.RECORD,
        file="backend_caps/runtime/graphs/runner.py",
        function="GraphRunner._mark",
        source="event.record(self._streams.current_stream())",
        protects="the page table, before or behind a replay",
    ),
    Mutant(
        name="reads done are recorded in the replay",
        kind=Kind.RECORD,
        file="backend_caps/runtime/graphs/runner.py",
        function="GraphRunner._capture",
        source="reads_done.record(stream)",
        protects="the page table, within a replay",
    ),
)

_MAP = (
    Mutant(
        name="map is made before it is used",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.__init__",
        source="self.streams.synchronize()",
        protects="columns, from being zeroed behind the first store",
    ),
    Mutant(
        name="publish is recorded",
        kind=Kind.RECORD,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.publish",
        source="self._published.record(self.streams.current_stream())",
        protects="lengths, from being read before they are published",
    ),
    Mutant(
        name="publish is recorded behind the store",
        kind=Kind.RECORD,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.publish",
        source="""
self._seq_lens.store(as_int64(req_pool_indices), seq_lens)
if self.speculative:
    self._published.record(self.streams.current_stream())
""",
        replacement="""
if self.speculative:
    self._published.record(self.streams.current_stream())
self._seq_lens.store(as_int64(req_pool_indices), seq_lens)
""",
        protects="lengths, from being read while they are published",
    ),
    Mutant(
        name="schedule waits for publish",
        kind=Kind.WAIT,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.resolve_seq_lens_cpu",
        source="self._published.wait(self.streams.current_stream())",
        protects="the batch's device lengths, from being gathered before they are published",
    ),
    Mutant(
        name="bootstrap waits for forward",
        kind=Kind.WAIT,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.bootstrap",
        source="current_stream.wait_stream(forward_stream)",
        protects="a recycled row, from the values of the request before",
    ),
    Mutant(
        name="forward waits for bootstrap",
        kind=Kind.WAIT,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.bootstrap",
        source="forward_stream.wait_stream(current_stream)",
        protects="the next forward, from reading the row before its request is in it",
    ),
    Mutant(
        name="rows of a mixed step are kept",
        kind=Kind.KEEP_ALIVE,
        file="backend_caps/relay/future_map.py",
        function="FutureMap._enter_staged",
        source="self.streams.keep_alive(running)",
        protects="the index of the decode rows, which the batch drops while it is gathered by",
    ),
    Mutant(
        name="keep_alive names the stream",
        kind=Kind.KEEP_ALIVE,
        file="backend_caps/relay/streams.py",
        function="DeviceStreams.keep_alive",
        source='tensor.record_stream(cast("torch.Stream", self.current_stream()))',
        protects="whatever is kept alive by it",
    ),
    Mutant(
        name="synchronize reaches the device",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/relay/streams.py",
        function="DeviceStreams.synchronize",
        source="self._module.synchronize(self.device)",
        protects="whatever is made before it, and used on other streams behind it",
    ),
    Mutant(
        name="sentinels are made out of place",
        kind=Kind.OUT_OF_PLACE,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.set_input_ids_sentinel",
        source="as_int64(batch.req_pool_indices).bitwise_not()",
        replacement="as_int64(batch.req_pool_indices).bitwise_not_()",
        protects="the batch's rows",
    ),
)

_HOST_COPY = (
    Mutant(
        name="column copy waits for publish",
        kind=Kind.WAIT,
        file="backend_caps/relay/host_copy.py",
        function="ColumnCopy.copy",
        source="self.stream.wait_event(self._published)",
        protects="the mirror, from lengths that are not published yet",
    ),
    Mutant(
        name="host waits for the column",
        kind=Kind.WAIT,
        file="backend_caps/relay/host_copy.py",
        function="ColumnCopy.copy",
        source="self.stream.synchronize()",
        protects="the mirror, from the column of the step before",
    ),
    Mutant(
        name="rows copy waits for publish",
        kind=Kind.WAIT,
        file="backend_caps/relay/host_copy.py",
        function="RowsCopy.copy",
        source="self.stream.wait_event(self._published)",
        protects="the mirror, from lengths that are not published yet",
    ),
    Mutant(
        name="host waits for the rows",
        kind=Kind.WAIT,
        file="backend_caps/relay/host_copy.py",
        function="RowsCopy.copy",
        source="self.stream.synchronize()",
        protects="the mirror, from the rows of the step before",
    ),
    Mutant(
        name="mirror has memory of its own",
        kind=Kind.OUT_OF_PLACE,
        file="backend_caps/relay/host_copy.py",
        function="RowsCopy.copy",
        source="lens_pinned.clone()",
        replacement="lens_pinned",
        protects="the mirror of the step before, from the next copy",
    ),
)

_PIPELINE = (
    Mutant(
        name="stash waits for the receive",
        kind=Kind.WAIT,
        file="backend_caps/runtime/pipeline/received.py",
        function="stash_received",
        source="receipt.wait()",
        protects="the next step, from tokens that have not arrived",
    ),
    Mutant(
        name="received tokens are kept",
        kind=Kind.KEEP_ALIVE,
        file="backend_caps/runtime/pipeline/received.py",
        function="stash_received",
        source="relay.streams.keep_alive(arrived)",
        protects="tokens of the receiving stream, which the forward stream reads",
    ),
    Mutant(
        name="profile begins on an idle device",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/pipeline/profile.py",
        function="ChunkProfiler._time_forward",
        source="self._streams.synchronize(); began_s = self._clock()",
        replacement="began_s = self._clock()",
        protects="the time of a forward, from counting what came before it",
    ),
    Mutant(
        name="profile ends with its forward",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/pipeline/profile.py",
        function="ChunkProfiler._time_forward",
        source="self._streams.synchronize(); return self._clock() - began_s",
        replacement="return self._clock() - began_s",
        protects="the time of a forward, from being that of its launch",
    ),
    Mutant(
        name="schedule waits for a failed forward",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/pipeline/profile.py",
        function="ChunkProfiler.time_chunk",
        source="self._on.schedule.wait_stream(self._on.forward)",
        protects="the page table, from the first batch's entries while a failed forward reads it",
    ),
)

REDUNDANT = (
    Mutant(
        name="engine is made before it is used",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.__init__",
        source="self.streams.synchronize()",
        protects="nothing: its FutureMap is made behind weights and pools, and synchronizes",
    ),
    Mutant(
        name="barrier of the plain loop",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/scheduler.py",
        function="Scheduler.step_plain",
        source="self._launcher.barrier(step)",
        protects="nothing: the host waits for the step's tokens before it builds the next batch",
    ),
    Mutant(
        name="barrier of an idle step",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/scheduler.py",
        function="Scheduler.step_idle",
        source="self._launcher.barrier(step)",
        protects="nothing: a step without requests reads nothing that the scheduler writes",
    ),
    Mutant(
        name="profiled forward waits for schedule",
        kind=Kind.WAIT,
        file="backend_caps/runtime/pipeline/profile.py",
        function="ChunkProfiler._time_forward",
        source="self._on.forward.wait_stream(self._on.schedule)",
        protects="nothing: the device is synchronized before the forward",
    ),
)
"""What another wait does as well: nothing shows that it is gone."""

MUTANTS = (*_STEP, *_BATCH, *_ENGINE, *_GRAPHS, *_PIPELINE, *_MAP, *_HOST_COPY)
"""The table."""


def mutant_named(name: str) -> Mutant:
    """Return a mutant by its name.

    Raises:
        KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
