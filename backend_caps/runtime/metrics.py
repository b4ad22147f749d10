"""Prometheus metrics of an engine, from what each step says of itself.

Nothing here asks the device or the batch: a metric that waits for a step would be its own finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    start_http_server,
)
from prometheus_client.samples import Sample

from backend_caps.errors import BackendCapsError
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.stats import StepStats

_SECONDS = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4),
    *(1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 1.0),
)
"""From a copy of a few bytes to a prefill: what the host does in a step takes such times."""
_WAITS = (0, 1, 2, 3, 4)


@dataclass(eq=False, kw_only=True)
class MetricsPortError(BackendCapsError):
    """Metrics cannot be served on a port."""

    address: str
    port: int
    problem: str

    @property
    def message(self) -> str:
        """The port, what the system says of it, and what to do."""
        return (
            f"metrics cannot be served on {self.address}:{self.port}: {self.problem}; a free port "
            f"of this machine was expected. Name another one, or 0 for any that is free."
        )


class Metrics:
    """Count steps, in a registry that belongs to one engine alone.

    It is an observer: `Engine(..., observer=metrics)`. It reads `StepStats` and nothing else.

    Args:
        registry: where the metrics are registered; one of their own by default.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._make_request_metrics()
        self._make_step_metrics()
        self._make_time_metrics()
        self._launched_s: float | None = None

    def observe(self, stats: StepStats) -> None:
        """Take in a step whose result was processed."""
        self._observe_requests(stats)
        run = "replayed" if stats.replayed else "eager"
        self._steps.labels(mode=stats.mode.value, run=run).inc()
        self._host_waits.observe(stats.host_waits)
        self._to_host.inc(stats.bytes_to_host)
        self._to_device.inc(stats.bytes_to_device)
        self._observe_times(stats)

    def render(self) -> str:
        """Write the metrics in Prometheus' text format, as `serve` answers."""
        return generate_latest(self.registry).decode()

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
            MetricsPortError: the port cannot be had.
        """
        try:
            server, thread = start_http_server(port, address, self.registry)
        except (OSError, OverflowError) as error:
            raise MetricsPortError(address=address, port=port, problem=str(error)) from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _make_request_metrics(self) -> None:
        self._running = self._gauge("num_running_reqs", "Requests that have a row of the pool.")
        self._queued = self._gauge(
            "num_queue_reqs", "Requests whose prompt has not run, or not all of it."
        )
        self._decode_lengths = self._gauge(
            "decode_sum_seq_lens",
            "Tokens of all contexts of the last decode step; where the host has no mirror of the "
            "lengths, as many as it has seen.",
        )
        self._made = self._counter("generation_tokens", "Tokens that requests got.")
        self._retractions = self._counter(
            "retractions", "Requests that were taken out of the KV cache to make room."
        )

    def _make_step_metrics(self) -> None:
        self._steps = self._counter(
            "steps", "Processed steps, by kind and by what ran them.", "mode", "run"
        )
        self._host_waits = self._histogram(
            "step_host_waits", "Times that the host waited for the device in a step.", _WAITS
        )
        crossed = self._counter(
            "transferred_bytes", "Bytes that crossed between host and device.", "direction"
        )
        self._to_host = crossed.labels(direction="to_host")
        self._to_device = crossed.labels(direction="to_device")

    def _make_time_metrics(self) -> None:
        self._publish_to_host = self._histogram(
            "publish_to_host_seconds",
            "From the launch of the step that published lengths to the host having them; only "
            "steps that wait for lengths count.",
        )
        self._host = self._histogram(
            "step_host_seconds", "The host's time for a step, the model's and waiting aside."
        )
        self._wait = self._histogram(
            "step_wait_seconds", "The host's time waiting for a step's tokens."
        )
        self._in_flight = self._histogram(
            "step_in_flight_seconds", "From a step's launch to the host having its tokens."
        )
        self._overlap = self._gauge(
            "overlap_ratio",
            "The share of the last step's time in flight in which the host did not wait; on a "
            "device without streams a step is done when its launch returns, and this is near 1.",
        )

    def _observe_requests(self, stats: StepStats) -> None:
        self._running.set(stats.num_running)
        self._queued.set(stats.num_waiting)
        if stats.mode is ForwardMode.DECODE:
            self._decode_lengths.set(stats.total_seq_lens)
        self._made.inc(stats.num_made)
        self._retractions.inc(stats.num_retracted)

    def _observe_times(self, stats: StepStats) -> None:
        clock = stats.clock
        if stats.waits_for_lengths and self._launched_s is not None:
            self._publish_to_host.observe(clock.lengths_s - self._launched_s)
        self._launched_s = clock.launched_s
        self._host.observe(stats.host_s)
        self._wait.observe(stats.wait_s)
        self._in_flight.observe(clock.tokens_s - clock.launched_s)
        self._overlap.set(stats.overlap_ratio)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"backend_caps_{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"backend_caps_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        full = f"backend_caps_{name}"
        return Histogram(full, text, buckets=buckets, registry=self.registry)


def _name(sample: Sample) -> str:
    labels = ",".join(f'{label}="{value}"' for label, value in sample.labels.items())
    return f"{sample.name}{{{labels}}}" if labels else sample.name
