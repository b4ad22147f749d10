"""The mutants of `backend_caps/runtime`."""

from __future__ import annotations

from tests.races.mutation import Kind, Mutant

_LAUNCH = "StepLauncher.launch"
_TO_HOST = "StepLauncher._to_host"
_TWO_BATCH, _STATES = "backend_caps/runtime/two_batch.py", "TwoBatchRunner.states"
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
        name="engine is made before it is used",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.__init__",
        source="self.streams.synchronize()",
        protects="weights and pools, from being written behind the first step",
    ),
    Mutant(
        name="deleted engine is waited for",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/engine.py",
        function="Engine.__init__",
        source="finalize(self, self.streams.device_wait())",
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

_CHUNKS = (
    Mutant(
        name="profile begins on an idle device",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/chunk_sizes.py",
        function="ChunkProfiler._time_forward",
        source="self._streams.synchronize(); began_s = self._clock()",
        replacement="began_s = self._clock()",
        protects="the time of a forward, from counting what came before it",
    ),
    Mutant(
        name="profile ends with its forward",
        kind=Kind.SYNCHRONIZE,
        file="backend_caps/runtime/chunk_sizes.py",
        function="ChunkProfiler._time_forward",
        source="self._streams.synchronize(); return self._clock() - began_s",
        replacement="return self._clock() - began_s",
        protects="the time of a forward, from being that of its launch",
    ),
    Mutant(
        name="schedule waits for a failed forward",
        kind=Kind.BARRIER,
        file="backend_caps/runtime/chunk_sizes.py",
        function="ChunkProfiler.time_chunk",
        source="self._on.schedule.wait_stream(self._on.forward)",
        protects="the page table, from the first batch's entries while a failed forward reads it",
    ),
)

_HALVES = (
    Mutant(
        name="second half waits for the batch",
        kind=Kind.WAIT,
        file=_TWO_BATCH,
        function=_STATES,
        source="self._side.wait_stream(forward)",
        protects="the second half, from tokens and metadata that are not there yet",
    ),
    Mutant(
        name="forward waits for the second half",
        kind=Kind.WAIT,
        file=_TWO_BATCH,
        function=_STATES,
        source="forward.wait_stream(self._side)",
        protects="what follows a forward, from a second half that still runs",
    ),
    Mutant(
        name="states of the second half are kept",
        kind=Kind.KEEP_ALIVE,
        file=_TWO_BATCH,
        function=_STATES,
        source="self._streams.keep_alive(own)",
        protects="tensors of the second half's stream, which the forward stream reads",
    ),
    Mutant(
        name="attention waits for the other half's",
        kind=Kind.WAIT,
        file=_TWO_BATCH,
        function="_Turn.attend",
        source="self.stream.wait_event(self.last)",
        protects="the KV cache, which both halves write, from two attentions at once",
    ),
    Mutant(
        name="attention of a half is recorded",
        kind=Kind.RECORD,
        file=_TWO_BATCH,
        function="_Turn.attend",
        source="self.last.record(self.stream)",
        protects="the other half's attention: an event that was never recorded is no wait",
    ),
)

RUNTIME_MUTANTS = (*_STEP, *_BATCH, *_ENGINE, *_GRAPHS, *_CHUNKS, *_HALVES)
"""All of them."""
