"""A recorder that also writes what a profiler would: the same run, shaped as kineto's export.

The names of categories, calls and arguments are those that libkineto writes for CUDA: see
`output_json.cpp` and `CuptiActivity.cpp` of pytorch/kineto.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from backend_caps.insight.profiler_export import MARK
from backend_caps.insight.recorder import Recorder
from backend_caps.simulator.queues import Marker, Op
from backend_caps.simulator.records import Waited, WaitKind

HOST_THREAD = 4242
_SYNCS = {
    WaitKind.STREAM: ("cudaStreamSynchronize", "Stream Sync"),
    WaitKind.EVENT: ("cudaEventSynchronize", "Event Sync"),
    WaitKind.DEVICE: ("cudaDeviceSynchronize", "Device Sync"),
    WaitKind.HIDDEN: ("cudaStreamSynchronize", "Stream Sync"),
}


class Profiler(Recorder):
    """Write an export of what is recorded."""

    def __init__(self, lanes: Mapping[int, str]) -> None:
        super().__init__(lanes)
        self.events: list[dict[str, object]] = [
            {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2, "tid": 99},
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 2},
        ]
        self._correlation = 0
        self._records: dict[Marker, int] = {}
        self._begins: list[tuple[str, int]] = []

    def enter(self, name: str) -> None:
        """Begin an annotation."""
        super().enter(name)
        self._begins.append((name, self.now_ns))

    def leave(self) -> None:
        """End an annotation."""
        super().leave()
        name, begin_ns = self._begins.pop()
        self._event("user_annotation", f"{MARK}{name}", begin_ns, self.now_ns, tid=HOST_THREAD)

    def launched(self, stream: int, op: Op) -> None:
        """Write a launch, and what it ran; a graph's operators have one launch."""
        super().launched(stream, op)
        if not self._is_replaying:
            self._call("cudaLaunchKernel", self.costs.launch_ns)
        ran = self.ran[-1]
        cat, name = "kernel", f"void at::native::{op.name}"
        if ran.num_bytes:
            cat, way = "gpu_memcpy", "DtoH" if op.bytes_to_host else "HtoD"
            name = f"Memcpy {way} (Device -> Pinned)"
        args = {"stream": stream, "correlation": self._correlation, "bytes": ran.num_bytes}
        self._event(cat, name, ran.begin_ns, ran.end_ns, tid=stream, args=args)

    def replay_began(self, stream: int) -> None:
        """Write a graph's launch."""
        super().replay_began(stream)
        self._call("cudaGraphLaunch", self.costs.replay_ns)

    def recorded(self, marker: Marker) -> None:
        """Write the record of an event."""
        super().recorded(marker)
        if not self._is_replaying:
            self._call("cudaEventRecord", self.costs.event_ns)
        self._records[marker] = self._correlation

    def waited(self, stream: int, marker: Marker) -> None:
        """Write a stream's wait."""
        super().waited(stream, marker)
        if self._is_replaying:
            return  # an edge of the graph
        self._call("cudaStreamWaitEvent", self.costs.event_ns)
        self._sync("Stream Wait Event", stream, marker)

    def synchronized(self, cause: str, waited: Waited, marker: Marker | None) -> None:
        """Write a wait of the host."""
        before_ns = self.now_ns
        super().synchronized(cause, waited, marker)
        call, sync = _SYNCS[waited.kind]
        self._call(call, self.now_ns - before_ns)
        self._sync(sync, -1 if waited.stream is None else waited.stream, marker)

    def write(self, file: Path) -> None:
        """Write the export."""
        file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": self.events}))

    def _sync(self, kind: str, stream: int, marker: Marker | None) -> None:
        args: dict[str, object] = {
            "cuda_sync_kind": kind,
            "stream": stream,
            "correlation": self._correlation,
        }
        if marker is not None:
            args["wait_on_stream"] = marker.stream if marker in self._records else -1
            args["wait_on_cuda_event_record_corr_id"] = self._records.get(marker, -1)
        self._event("cuda_sync", kind, self.now_ns, self.now_ns, tid=stream, args=args)

    def _call(self, name: str, length_ns: int) -> None:
        self._correlation += 1
        args: dict[str, object] = {"correlation": self._correlation, "cbid": 211}
        begin_ns = self.now_ns - length_ns
        self._event("cuda_runtime", name, begin_ns, self.now_ns, tid=HOST_THREAD, args=args)

    def _event(
        self,
        cat: str,
        name: str,
        begin_ns: int,
        end_ns: int,
        *,
        tid: int,
        args: Mapping[str, object] | None = None,
    ) -> None:
        times = {"ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
        event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, **times}
        self.events.append({**event, "args": dict(args or {})})
