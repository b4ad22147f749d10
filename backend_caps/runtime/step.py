"""A step: from the scheduler's batch onto the device, and its tokens back to the host.

Three streams take part. The forward stream waits for the schedule stream, where the batch was
built; the host-copy stream waits for the forward; the schedule stream then waits for the forward's
last read of what the scheduler writes next. The host waits for the tokens alone.

Shapes: B requests in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.relay.streams import EventLike, StepStreams
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import StepClock, now_s
from backend_caps.runtime.worker import Worker

_DECODES = frozenset({ForwardMode.DECODE, ForwardMode.MIXED})


@dataclass(slots=True, kw_only=True)
class Step:
    """A step under way.

    Who processes its result lets go of it then, and not before: its batch's tensors were made on
    the schedule stream, and its tokens on the forward stream, and other streams read them. With
    one step under way while the next is launched, two are alive.
    """

    batch: ScheduleBatch
    """As it was launched; the scheduler's own may be another by now."""
    tokens: Tensor
    """[B] int64, device: a token of each request."""
    tokens_cpu: Tensor
    """[B] int64, pinned host: nothing until `copied`."""
    copied: EventLike
    """Behind the copy of the tokens to the host."""
    reads_done: EventLike | None
    """Behind the last read of what the scheduler writes; None where nobody marked it."""
    num_tokens: int
    """Tokens that the forward computed."""
    replayed: bool
    """Whether a captured graph ran it."""
    clock: StepClock
    """When the host passed the step's stations."""
    bytes_to_host: int
    """What crosses from the device for it."""
    bytes_to_device: int
    """What crosses to the device for it."""


class StepLauncher:
    """Enqueue steps, and wait for their tokens.

    Args:
        worker: runs a step's forward.
        relay: carries each step's tokens to the next.
        staging: carries host numbers to the device.
        step_streams: the three that steps run on.
    """

    def __init__(
        self, *, worker: Worker, relay: FutureMap, staging: Staging, step_streams: StepStreams
    ) -> None:
        self._worker = worker
        self._relay = relay
        self._staging = staging
        self._streams = staging.streams
        self._on = step_streams
        self._bytes_staged = 0

    def launch(self, batch: ScheduleBatch, clock: StepClock) -> Step:
        """Enqueue a step: its forward, the relay of its tokens, and their way to the host.

        Stream: the current one must be the schedule stream. Sync: the relay's, which waits for
        lengths where the plan says so. Keeps: nothing; the caller keeps the step.
        """
        clock.built_s = now_s()
        self._relay.resolve_seq_lens_cpu(batch)
        clock.lengths_s = now_s()
        own = batch.copy()
        if own.mode in _DECODES:
            self._relay.set_input_ids_sentinel(own)
        self._on.forward.wait_stream(self._on.schedule)
        with self._streams.using(self._on.forward):
            self._relay.resolve_future(own)
            forward = ForwardBatch.init_new(own, self._staging)
            clock.model_s = now_s()
            output = self._worker.forward(forward)
            clock.model_done_s = now_s()
            self._relay.stash(own.req_pool_indices, RelayPayload(output.tokens))
        tokens_cpu, copied = self._to_host(output.tokens)
        clock.launched_s = now_s()
        return Step(
            batch=own,
            tokens=output.tokens,
            tokens_cpu=tokens_cpu,
            copied=copied,
            reads_done=output.reads_done,
            num_tokens=forward.num_tokens,
            replayed=output.replayed,
            clock=clock,
            bytes_to_host=self._count_to_host(own),
            bytes_to_device=self._count_staged(),
        )

    def barrier(self, step: Step) -> None:
        """Put the schedule stream behind a step's last read of what the scheduler writes.

        The scheduler writes the page table. Where no event marks the last read, it is behind all
        that the forward stream has.
        """
        if step.reads_done is None:
            self._on.schedule.wait_stream(self._on.forward)
        else:
            self._on.schedule.wait_event(step.reads_done)

    def tokens(self, step: Step) -> list[int]:
        """Return a step's tokens, one a request.

        Sync: the step's copy to the host, and so its forward.
        """
        step.clock.result_s = now_s()
        step.copied.synchronize()
        step.clock.tokens_s = now_s()
        numbers: list[int] = step.tokens_cpu.tolist()
        return numbers

    def _to_host(self, tokens: Tensor) -> tuple[Tensor, EventLike]:
        """Copy a step's tokens on a stream of its own, behind the forward."""
        copied = self._streams.event()
        if not self._streams.traits.has_pinned_memory:
            copied.record(self._on.forward)
            return tokens, copied
        tokens_cpu = self._streams.empty_pinned(tokens.shape[0])
        self._on.host_copy.wait_stream(self._on.forward)
        with self._streams.using(self._on.host_copy):
            tokens_cpu.copy_(tokens, non_blocking=True)
            copied.record(self._on.host_copy)
        return tokens_cpu, copied

    def _count_to_host(self, batch: ScheduleBatch) -> int:
        num_requests = len(batch.requests)
        tokens = num_requests * batch.req_pool_indices_cpu.itemsize
        if batch.spec_info is None:
            return tokens
        return tokens + self._relay.bytes_to_host(num_requests)

    def _count_staged(self) -> int:
        before, self._bytes_staged = self._bytes_staged, self._staging.num_bytes
        return self._bytes_staged - before
