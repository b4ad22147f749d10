"""The mutants of `backend_caps/relay`."""

from __future__ import annotations

from tests.races.cases import Program
from tests.races.mutation import Kind, Mutant

_DRAFTS = (Program.DRAFTS,)
"""The engine itself, where it shows what a loop with a made-up worker does not have."""

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
        name="publish is recorded where it is made",
        kind=Kind.RECORD,
        file="backend_caps/relay/future_map.py",
        function="FutureMap.publish",
        source="self._published.record(self.streams.current_stream())",
        replacement="self._published.record(self.streams.private_stream())",
        protects="lengths, from a second producer that records the event ahead of the first",
        programs=_DRAFTS,
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
        file="backend_caps/relay/host_lengths.py",
        function="ColumnCopy.copy",
        source="self.stream.wait_event(self._published)",
        protects="the mirror, from lengths that are not published yet",
    ),
    Mutant(
        name="host waits for the column",
        kind=Kind.WAIT,
        file="backend_caps/relay/host_lengths.py",
        function="ColumnCopy.copy",
        source="self.stream.synchronize()",
        protects="the mirror, from the column of the step before",
    ),
    Mutant(
        name="rows copy waits for publish",
        kind=Kind.WAIT,
        file="backend_caps/relay/host_lengths.py",
        function="RowsCopy.copy",
        source="self.stream.wait_event(self._published)",
        protects="the mirror, from lengths that are not published yet",
    ),
    Mutant(
        name="host waits for the rows",
        kind=Kind.WAIT,
        file="backend_caps/relay/host_lengths.py",
        function="RowsCopy.copy",
        source="self.stream.synchronize()",
        protects="the mirror, from the rows of the step before",
    ),
    Mutant(
        name="mirror has memory of its own",
        kind=Kind.OUT_OF_PLACE,
        file="backend_caps/relay/host_lengths.py",
        function="RowsCopy.copy",
        source="lens_pinned.clone()",
        replacement="lens_pinned",
        protects="the mirror of the step before, from the next copy",
    ),
)

RELAY_MUTANTS = (*_MAP, *_HOST_COPY)
"""All of them."""
