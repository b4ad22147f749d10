"""Prometheus metrics of an engine, from the figures of each step.

Nothing here reads the device or the batch: a metric that waits would change what it measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from backend_caps.extras import require_extra

require_extra("metrics", __name__)

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.samples import Sample

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.stats import StepStats

_SECONDS = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4),
    *(1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1.0),
)
"""From a copy of a few bytes to a prefill: what the host does in a step takes such times."""
_WAITS = (0, 1, 2, 3, 4)
_NAMESPACE = "backend_caps"
_TEXTS = {
    "num_running_reqs": "Requests that have a row of the pool.",
    "num_queue_reqs": "Requests whose prompt has not run, or not all of it.",
    "decode_sum_seq_lens": "Tokens of all contexts of the last decode step; where a speculative "
    "plan has no mirror of the lengths, as many as the host has seen.",
    "generation_tokens": "Tokens that requests got.",
    "retractions": "Requests that were taken out of the KV cache to make room.",
    "steps": "Processed steps, by kind and by what ran them.",
    "step_host_seconds": "The host's time for a step, the model's and waits aside.",
    "transferred_bytes": "Bytes that the plan makes cross between host and device.",
    "step_planned_waits": "Times that the plan makes the host wait for the device in a step: for "
    "the tokens, and in speculative steps for lengths where a backend reads them. Hidden waits are "
    "not seen.",
    "publish_to_host_seconds": "From the launch of the step that published lengths to the host "
    "having them; counts speculative steps that wait for lengths, and stays 0 without speculative "
    "decoding.",
    "step_wait_seconds": "The host's time waiting for a step's tokens.",
    "step_in_flight_seconds": "From a step's launch to the host having its tokens.",
    "overlap_ratio": "The share of the last step's time in flight in which the host did not wait.",
}
"""The help text of each metric."""


class Metrics:
    """Count steps, in a registry that belongs to one engine alone.

    It is an observer: `Engine(..., observer=metrics)`. It reads `StepStats` and nothing else.

    Args:
        registry: where the metrics are registered; one of their own by default.
        has_streams: whether the engine's device has streams, as `engine.streams.traits` says.
            Without them a step is done when its launch returns: nothing waits and nothing crosses,
            and metrics of that are left out.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, has_streams: bool = True
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        own = self.registry
        self._running = _gauge(own, "num_running_reqs")
        self._queued = _gauge(own, "num_queue_reqs")
        self._decode_lengths = _gauge(own, "decode_sum_seq_lens")
        self._made = _counter(own, "generation_tokens")
        self._retractions = _counter(own, "retractions")
        self._steps = _counter(own, "steps", "mode", "run")
        self._host = _histogram(own, "step_host_seconds")
        self._streams = _StreamMetrics(own) if has_streams else None

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        self._running.set(stats.num_running)
        self._queued.set(stats.num_waiting)
        if stats.mode is ForwardMode.DECODE:
            self._decode_lengths.set(stats.total_seq_lens)
        self._made.inc(stats.num_made)
        self._retractions.inc(stats.num_retracted)
        self._steps.labels(mode=stats.mode.value, run=stats.graph_mode.value).inc()
        self._host.observe(stats.host_s)
        if self._streams is not None:
            self._streams.observe(stats)

    def render(self) -> str:
        """Write the metrics in Prometheus' text format, as `serve` answers."""
        return prometheus_client.generate_latest(self.registry).decode()

    def samples(self) -> Mapping[str, float]:
        """List the values by name and labels, as in `name{label="value"}`, for people to read.

        Histograms have their count and sum; buckets, and when a series began, are left out.
        """
        return {
            _name(sample): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if not sample.name.endswith(("_bucket", "_created"))
        }

    @contextmanager
    def serve(self, port: int, address: str = "127.0.0.1") -> Iterator[int]:
        """Serve the metrics over HTTP within a `with` block, from a thread; yield the port.

        Args:
            port: 0 takes any that is free.
            address: where to listen; by default this machine alone can ask.

        Raises:
            EngineError: `metrics-port`: the port cannot be had.
        """
        try:
            server, thread = prometheus_client.start_http_server(port, address, self.registry)
        except (OSError, OverflowError) as error:
            raise EngineError(
                "metrics-port",
                f"metrics cannot be served on {address}:{port}: {error}; a free port of this "
                f"machine was expected. Name another one, or 0 for any that is free.",
            ) from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _StreamMetrics:
    """Count what is there only where the device works beside the host: waits, and what crosses."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._launched_s: float | None = None
        crossed = _counter(registry, "transferred_bytes", "direction")
        self._to_host = crossed.labels(direction="to_host")
        self._to_device = crossed.labels(direction="to_device")
        self._planned_waits = _histogram(registry, "step_planned_waits", _WAITS)
        self._publish_to_host = _histogram(registry, "publish_to_host_seconds")
        self._wait = _histogram(registry, "step_wait_seconds")
        self._in_flight = _histogram(registry, "step_in_flight_seconds")
        self._overlap = _gauge(registry, "overlap_ratio")

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        self._to_host.inc(stats.bytes_to_host)
        self._to_device.inc(stats.bytes_to_device)
        self._planned_waits.observe(stats.planned_waits)
        clock = stats.clock
        if stats.waits_for_lengths and self._launched_s is not None:
            self._publish_to_host.observe(clock.lengths_s - self._launched_s)
        self._launched_s = clock.launched_s
        self._wait.observe(stats.wait_s)
        self._in_flight.observe(clock.tokens_s - clock.launched_s)
        self._overlap.set(stats.overlap_ratio)


def _gauge(registry: CollectorRegistry, name: str) -> Gauge:
    return Gauge(name, _TEXTS[name], namespace=_NAMESPACE, registry=registry)


def _counter(registry: CollectorRegistry, name: str, *labels: str) -> Counter:
    return Counter(name, _TEXTS[name], labels, namespace=_NAMESPACE, registry=registry)


def _histogram(
    registry: CollectorRegistry, name: str, buckets: Sequence[float] = _SECONDS
) -> Histogram:
    text = _TEXTS[name]
    return Histogram(name, text, namespace=_NAMESPACE, registry=registry, buckets=buckets)


def _name(sample: Sample) -> str:
    labels = ",".join(f'{label}="{value}"' for label, value in sample.labels.items())
    return f"{sample.name}{{{labels}}}" if labels else sample.name
