"""A step: from the scheduler's batch onto the device, and its tokens back to the host.

Three streams take part. The forward stream waits for the schedule stream, where the batch was
built; the host-copy stream waits for the forward; the schedule stream then waits for the forward's
last read of what the scheduler writes next. The host waits for the tokens alone.

Shapes: B requests in the batch, A the most tokens that a speculative step accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.relay.streams import EventLike, StepStreams
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import StepClock, now_s
from backend_caps.runtime.worker import StepOutput, Worker
from backend_caps.startup.graph_modes import GraphMode


@dataclass(slots=True, kw_only=True)
class Step:
    """A step under way.

    Keep it until its result is processed: its batch's tensors were made on the schedule stream, and
    its tokens on the forward stream, and other streams read them. With
    one step under way while the next is launched, two are alive.
    """

    batch: ScheduleBatch
    """As it was launched; the scheduler's own may be another by now."""
    tokens: Tensor
    """[B] int64, device: a token of each request; of a speculative step [B, 1 + A], how many tokens
    each request got, and the tokens."""
    tokens_cpu: Tensor
    """The same, pinned host: nothing until `copied`."""
    copied: EventLike
    """Behind the copy of the tokens to the host."""
    reads_done: EventLike | None
    """Behind the last read of what the scheduler writes; None where no event marks it."""
    num_tokens: int
    """Tokens that the forward computed."""
    graph_mode: GraphMode
    """How the target's forward ran."""
    in_halves: bool
    """Whether it ran in two halves."""
    clock: StepClock
    """When the host passed the step's stations."""
    bytes_to_host: int
    """What crosses from the device for it."""
    bytes_to_device: int
    """What crosses to the device for it."""


class StepRunner(Protocol):
    """What a step's forwards are, from a batch whose inputs are there to what goes on from it."""

    def run(self, batch: ScheduleBatch, clock: StepClock) -> StepOutput:
        """Run a step's forwards, and give the relay what the next step starts from.

        Stream: the current one, which must be the forward stream.
        """


class PlainRunner:
    """One forward a step.

    Args:
        worker: runs it.
        relay: carries its tokens to the next one.
        staging: carries host numbers to the device.
    """

    def __init__(self, *, worker: Worker, relay: FutureMap, staging: Staging) -> None:
        self._worker = worker
        self._relay = relay
        self._staging = staging

    def run(self, batch: ScheduleBatch, clock: StepClock) -> StepOutput:
        """Run the forward, and stash a token a request.

        Stream: the current one, which must be the forward stream. Sync: the backend's.
        """
        forward = ForwardBatch.init_new(batch, self._staging)
        clock.model_s = now_s()
        output = self._worker.forward(forward)
        clock.model_done_s = now_s()
        self._relay.stash(batch.req_pool_indices, RelayPayload(output.tokens))
        return output


class StepLauncher:
    """Enqueue steps, and wait for their tokens.

    Args:
        runner: runs a step's forwards.
        relay: carries each step's tokens to the next.
        staging: carries host numbers to the device.
        step_streams: the three that steps run on.
    """

    def __init__(
        self, *, runner: StepRunner, relay: FutureMap, staging: Staging, step_streams: StepStreams
    ) -> None:
        self._runner = runner
        self._relay = relay
        self._staging = staging
        self._streams = staging.streams
        self._on = step_streams
        self._bytes_staged = 0

    def launch(self, batch: ScheduleBatch, clock: StepClock) -> Step:
        """Enqueue a step: its forward, the relay of its tokens, and their way to the host.

        Stream: the current one must be the schedule stream. Sync: none; the runner's own.
        Keeps: nothing; the caller keeps the step.
        """
        if not clock.lengths_s:
            clock.built_s = clock.lengths_s = now_s()
        own = batch.copy()
        if own.mode is ForwardMode.DECODE:
            self._relay.set_input_ids_sentinel(own)
            self._relay.count_plain_step(own)
        self._on.forward.wait_stream(self._on.schedule)
        with self._streams.using(self._on.forward):
            self._relay.resolve_future(own)
            output = self._runner.run(own, clock)
        tokens_cpu, copied = self._to_host(output.tokens)
        clock.launched_s = now_s()
        return Step(
            batch=own,
            tokens=output.tokens,
            tokens_cpu=tokens_cpu,
            copied=copied,
            reads_done=output.reads_done,
            num_tokens=output.num_tokens,
            graph_mode=output.graph_mode,
            in_halves=output.in_halves,
            clock=clock,
            bytes_to_host=self._count_to_host(output.tokens, clock),
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

    def tokens(self, step: Step) -> list[list[int]]:
        """Return what each request got of a step: a token, or several of a speculative one.

        Sync: the step's copy to the host, and so its forward.
        """
        step.clock.result_s = now_s()
        step.copied.synchronize()
        step.clock.tokens_s = now_s()
        if step.tokens_cpu.dim() == 1:
            return [[token] for token in step.tokens_cpu.tolist()]
        return [tokens[:count] for count, *tokens in step.tokens_cpu.tolist()]

    def _to_host(self, tokens: Tensor) -> tuple[Tensor, EventLike]:
        """Copy a step's tokens on a stream of its own, behind the forward."""
        copied = self._streams.event()
        if not self._streams.traits.has_pinned_memory:
            copied.record(self._on.forward)
            return tokens, copied
        tokens_cpu = self._streams.empty_pinned(tokens.numel()).view(tokens.shape)
        self._on.host_copy.wait_stream(self._on.forward)
        with self._streams.using(self._on.host_copy):
            tokens_cpu.copy_(tokens, non_blocking=True)
            copied.record(self._on.host_copy)
        return tokens_cpu, copied

    def _count_to_host(self, tokens: Tensor, clock: StepClock) -> int:
        return tokens.numel() * tokens.itemsize + self._relay.bytes_to_host(clock.num_lengths)

    def _count_staged(self) -> int:
        before, self._bytes_staged = self._bytes_staged, self._staging.num_bytes
        return self._bytes_staged - before
