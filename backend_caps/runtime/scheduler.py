"""The scheduler: which step comes next, and how two steps overlap.

Both loops launch the same steps and process the same results. The plain one waits for each step's
result before it builds the next batch. The overlapped one builds batch n+1 and launches it while
step n runs, so the host learns of step n's tokens one step late: a request that has ended may run
one more step, whose token is dropped.

What step n reads and the scheduler writes is the page table. The barrier right after the launch
puts the schedule stream behind step n's last read of it, and so dominates everything that the host
then does: processing the result before, whose pages the next batch may get, and building that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.relay.streams import EventLike, StepStreams
from backend_caps.runtime.admission import WaitingLine, choose_retractions
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.request import Request
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import StepClock, StepObserver, StepStats, total_seq_lens
from backend_caps.runtime.worker import Worker

# A step's tensors are dropped when the second step after it is launched: by then the host has
# processed its result, so the device is done with them.
_STEPS_ALIVE = 2
_DECODES = frozenset({ForwardMode.DECODE, ForwardMode.MIXED})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token of a request, as soon as the host has it."""

    request: Request
    token: int


@dataclass(slots=True, kw_only=True)
class Step:
    """A step under way, and what has to live until its result is processed."""

    batch: ScheduleBatch
    forward: ForwardBatch
    tokens: Tensor
    """[B] int64, device: the host copy's source."""
    tokens_cpu: Tensor
    """[B] int64, pinned host: nothing until `copied`."""
    copied: EventLike
    reads_done: EventLike | None
    """Behind the step's last read of shared buffers; None where nobody marked it."""
    clock: StepClock


class Scheduler:
    """Run requests in steps.

    Args:
        worker: runs a step's forward.
        memory: rows and pages of the requests.
        relay: carries each step's tokens to the next.
        staging: carries host numbers to the device.
        step_streams: the three that steps run on; the same that `relay` avoids.
        waiting: the requests that are not running yet.
        mixed: whether decode rows join steps of prompts.
        observer: is told of every processed step.
    """

    def __init__(
        self,
        *,
        worker: Worker,
        memory: RequestMemory,
        relay: FutureMap,
        staging: Staging,
        step_streams: StepStreams,
        waiting: WaitingLine,
        mixed: bool,
        observer: StepObserver,
    ) -> None:
        self._worker = worker
        self._memory = memory
        self._relay = relay
        self._staging = staging
        self._streams = staging.streams
        self._on = step_streams
        self._waiting = waiting
        self._mixed = mixed
        self._observer = observer
        self._running = ScheduleBatch.empty(memory, staging)
        self._last: ScheduleBatch | None = None
        self._in_flight: Step | None = None
        self._alive: deque[Step] = deque(maxlen=_STEPS_ALIVE)

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, or a result is to be processed."""
        return bool(
            len(self._waiting)
            or self._running.requests
            or self._last is not None
            or self._in_flight is not None
        )

    def add(self, request: Request) -> None:
        """Take a request in."""
        self._waiting.add(request)

    @torch.inference_mode()
    def step_overlapped(self) -> Sequence[NewToken]:
        """Launch the next step, then process the result of the one before."""
        with self._streams.using(self._on.schedule):
            batch = self._next_batch()
            step = None if batch is None else self._launch(batch)
            self._barrier(step)
            done, self._in_flight = self._in_flight, step
            return () if done is None else self._process(done)

    @torch.inference_mode()
    def step_plain(self) -> Sequence[NewToken]:
        """Launch the next step, and process its result."""
        with self._streams.using(self._on.schedule):
            batch = self._next_batch()
            return () if batch is None else self._process(self._launch(batch))

    @torch.inference_mode()
    def step_idle(self) -> None:
        """Run a step without requests, as a rank does whose peers have some."""
        with self._streams.using(self._on.schedule):
            step = self._launch(ScheduleBatch.empty(self._memory, self._staging))
            self._barrier(step)
            self._process(step)

    def _next_batch(self) -> ScheduleBatch | None:
        """Choose the next step: prompts first, else a token of every running request."""
        self._waiting.drop_aborted()
        self._join_running()
        self._drop_done()
        mixes = self._mixed and self._make_room()
        stretches = self._waiting.admit(len(self._running.requests))
        if not stretches:
            return self._decode_batch()
        batch = ScheduleBatch.prepare_for_extend(
            [stretch.request for stretch in stretches],
            [stretch.num_tokens for stretch in stretches],
            self._memory,
            self._staging,
        )
        if mixes:
            self._running.prepare_for_decode()
            batch.mix_with_running(self._running)
            self._running = ScheduleBatch.empty(self._memory, self._staging)
        self._last = batch
        return batch

    def _decode_batch(self) -> ScheduleBatch | None:
        if not self._make_room():
            return None
        self._running.prepare_for_decode()
        return self._running

    def _join_running(self) -> None:
        """Let those decode whose prompt has run; a prompt that was cut comes back in line."""
        batch, self._last = self._last, None
        if batch is None:
            return
        batch.filter([place for place, samples in enumerate(batch.samples) if samples])
        self._running.merge(batch)

    def _drop_done(self) -> None:
        """Drop those for whom nothing more is to be launched; who was given up goes at once."""
        keep: list[int] = []
        for place, request in enumerate(self._running.requests):
            if request.is_finished:
                self._let_go(request)
            elif not request.is_launched_out:
                keep.append(place)
        self._running.filter(keep)

    def _make_room(self) -> bool:
        """Retract until a token of each running request fits; tell whether any can be made.

        Where the last one does not fit either, requests whose last step is under way have the
        pages, and give them back when its result is processed.
        """
        requests, memory = self._running.requests, self._memory
        lengths = self._running.mirror.tolist()
        missing = [
            memory.num_pages_missing(own.row, length + 1)
            for own, length in zip(requests, lengths, strict=True)
        ]
        if sum(missing) > memory.pages.num_free:
            self._waiting.give_up_cut()
        retracted = choose_retractions(requests, missing, memory)
        for request in retracted:
            self._waiting.retract(request)
        keep = [place for place, own in enumerate(requests) if own.row]
        self._running.filter(keep)
        return 0 < len(keep) and sum(missing[place] for place in keep) <= memory.pages.num_free

    def _launch(self, batch: ScheduleBatch) -> Step:
        """Enqueue a step: its forward, the relay of its results, and their way to the host."""
        clock = StepClock.start(batch)
        self._relay.resolve_seq_lens_cpu(batch)
        own = batch.copy()
        if own.mode in _DECODES:
            self._relay.set_input_ids_sentinel(own)
        self._on.forward.wait_stream(self._on.schedule)
        with self._streams.using(self._on.forward):
            self._relay.resolve_future(own)
            forward = ForwardBatch.init_new(own, self._staging)
            clock.before_model()
            output = self._worker.forward(forward)
            clock.after_model()
            self._relay.stash(own.req_pool_indices, RelayPayload(output.tokens))
        tokens_cpu, copied = self._to_host(output.tokens)
        for request, samples in zip(own.requests, own.samples, strict=True):
            request.num_launched += samples
        step = Step(
            batch=own,
            forward=forward,
            tokens=output.tokens,
            tokens_cpu=tokens_cpu,
            copied=copied,
            reads_done=output.reads_done,
            clock=clock,
        )
        self._alive.append(step)
        clock.launched()
        return step

    def _to_host(self, tokens: Tensor) -> tuple[Tensor, EventLike]:
        """Copy a step's tokens to the host on a stream of its own, behind the forward."""
        copied = self._streams.event()
        if not self._streams.traits.has_pinned_memory:
            return tokens, copied
        tokens_cpu = self._streams.empty_pinned(tokens.shape[0])
        self._on.host_copy.wait_stream(self._on.forward)
        with self._streams.using(self._on.host_copy):
            tokens_cpu.copy_(tokens, non_blocking=True)
            copied.record(self._on.host_copy)
        return tokens_cpu, copied

    def _barrier(self, step: Step | None) -> None:
        """Put the schedule stream behind a step's last read of what the scheduler writes."""
        if step is None:
            return
        if step.reads_done is None:
            self._on.schedule.wait_stream(self._on.forward)
        else:
            self._on.schedule.wait_event(step.reads_done)

    def _process(self, step: Step) -> Sequence[NewToken]:
        """Take in a step's tokens, and let go of the requests that they end."""
        step.clock.before_wait()
        step.copied.synchronize()
        step.clock.after_wait()
        tokens: list[int] = step.tokens_cpu.tolist()
        batch = step.batch
        made: list[NewToken] = []
        results = zip(batch.requests, batch.generations, batch.samples, tokens, strict=True)
        for request, generation, samples, token in results:
            if not samples or request.generation != generation:
                continue  # its prompt goes on, or it has left since
            if not request.is_finished:
                request.take(token)
                made.append(NewToken(request=request, token=token))
            if request.is_finished:
                self._let_go(request)
        self._observer.observe(self._stats(step, len(made)))
        return made

    def _let_go(self, request: Request) -> None:
        """Give back what a request has, unless that was done when its last token came."""
        if request.row:
            self._memory.release(request.row)
            request.leave()

    def _stats(self, step: Step, num_made: int) -> StepStats:
        batch = step.batch
        return StepStats(
            mode=batch.mode,
            num_running=len(self._running.requests),
            num_waiting=len(self._waiting),
            num_requests=len(batch.requests),
            num_tokens=step.forward.num_tokens,
            num_made=num_made,
            total_seq_lens=total_seq_lens(batch),
            clock=step.clock,
        )
