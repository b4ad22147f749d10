"""The scheduler: which step comes next, and how two steps overlap.

Both loops launch the same steps and process the same results. The plain one waits for each step's
result before it builds the next batch. The overlapped one builds batch n+1 and launches it while
step n runs, so the host learns of step n's tokens one step late: a request that has ended may run
one more step, whose token is dropped.

The barrier stands right after the overlapped launch. It dominates everything that the host then
does: processing the result before, whose pages the next batch may get, and building that batch. The
plain loop has waited for the step's tokens by then, and so for all of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch

from backend_caps.runtime.admission import WaitingLine, choose_retractions
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.disaggregation import PromptTransfer
from backend_caps.runtime.errors import EngineError
from backend_caps.runtime.request import FinishReason, Request
from backend_caps.runtime.speculative.runner import SpeculativeDecoding
from backend_caps.runtime.stats import StepClock, StepObserver, StepStats, now_s, total_seq_lens
from backend_caps.runtime.step import Step, StepLauncher


class PlainDecoding:
    """The scheduler's side of a decode step that adds one token to each context.

    It knows every length by itself. What a speculative step adds is known on the device alone until
    its result is processed: `SpeculativeDecoding` has the same methods.
    """

    follows_results = False
    """Whether a step can be built only behind the result of the one before."""

    def reach(self, running: ScheduleBatch) -> Sequence[int]:
        """Return the tokens that each context may have behind its next step, drafts included."""
        return [length + 1 for length in running.mirror.tolist()]

    def enter(self, requests: Sequence[Request]) -> None:
        """Called with requests of which a stretch of the prompt is launched."""

    def prepare(self, running: ScheduleBatch, clock: StepClock) -> None:  # noqa: ARG002
        """Make a batch's next step."""
        running.prepare_for_decode()

    prepare_mixed = prepare
    """Make a batch's next step one of a token a request, to be mixed into one of prompts."""

    def commit(self, requests: Sequence[Request]) -> None:
        """Called with requests of which a step's result was processed."""


Decoding: TypeAlias = PlainDecoding | SpeculativeDecoding


class NewToken(NamedTuple):
    """A token of a request, as soon as the host has it."""

    request: Request
    """Whose output goes on."""
    token: int
    """What it goes on by."""


@dataclass(slots=True, kw_only=True, eq=False)
class Scheduler:
    """Run requests in steps."""

    launcher: StepLauncher
    """Runs steps."""
    waiting: WaitingLine
    """The requests that are not running yet, and the memory that all of them share."""
    decoding: Decoding
    """How running requests go on."""
    mixed: bool
    """Whether decode rows join steps of prompts."""
    observer: StepObserver
    """Called with every processed step."""
    transfer: PromptTransfer | None
    """Of prompts between engines; None where they run and are gone on with here."""
    _running: ScheduleBatch = field(init=False)
    _last: ScheduleBatch | None = None
    _in_flight: Step | None = None
    _num_retracted: int = 0
    _open: set[Request] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._running = self._empty_batch()

    @property
    def has_work(self) -> bool:
        """Whether a request waits or runs, or a result is to be processed."""
        return bool(len(self.waiting) or self._running.requests or self._last or self._in_flight)

    @property
    def has_requests(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._open)

    def add(self, request: Request) -> None:
        """Take a request in."""
        self._open.add(request)
        self.waiting.add(request)

    def abort(self, request: Request) -> None:
        """Give a request up, unless it has ended. A token that is under way is dropped.

        Raises:
            EngineError: `foreign-request`: it is another scheduler's.
        """
        if request.is_finished:
            return
        if request not in self._open:
            raise EngineError(
                "foreign-request",
                f"request {request.number} is none of this engine's; one that its submit returned "
                f"was expected. Give it to the engine that it was submitted to.",
            )
        request.finish_reason = FinishReason.ABORT
        request.states = None
        self.waiting.drop(request)
        self._let_go(request)

    @torch.inference_mode()
    def step_overlapped(self) -> Sequence[NewToken]:
        """Launch the next step, then process the result of the one before.

        Where drafts are looked up on the host, that result comes first: they continue it.
        """
        with self._on_schedule_stream():
            made = self._settle(None) if self.decoding.follows_results else ()
            clock = StepClock(now_s())
            batch = self._next_batch(clock)
            step = None if batch is None else self.launcher.launch(batch, clock)
            if step is not None:
                # Before results are processed: this step still reads pages that they free.
                self.launcher.barrier(step)
            return (*made, *self._settle(step))

    @torch.inference_mode()
    def step_plain(self) -> Sequence[NewToken]:
        """Launch the next step, and process its result."""
        with self._on_schedule_stream():
            clock = StepClock(now_s())
            batch = self._next_batch(clock)
            return () if batch is None else self._process(self.launcher.launch(batch, clock))

    @torch.inference_mode()
    def step_idle(self) -> None:
        """Run a step without requests, as a rank does whose peers have some."""
        with self._on_schedule_stream():
            self._process(self.launcher.launch(self._empty_batch(), StepClock(now_s())))

    def _on_schedule_stream(self) -> AbstractContextManager[object]:
        resources = self.launcher.resources
        return resources.streams.using(resources.step_streams.schedule)

    def _empty_batch(self) -> ScheduleBatch:
        return ScheduleBatch.empty(self.waiting.memory)

    def _settle(self, step: Step | None) -> Sequence[NewToken]:
        """Put a step in the place of the one under way, and process that one's result."""
        done, self._in_flight = self._in_flight, step
        return () if done is None else self._process(done)

    def _next_batch(self, clock: StepClock) -> ScheduleBatch | None:
        """Choose the next step: prompts first, else every running request goes on."""
        self._join_running()
        self._drop_done()
        self._take_over()
        mixes = self.mixed and self._make_room()
        stretches = self.waiting.admit(self._num_pages_kept())
        if not stretches:
            return self._decode_batch(clock)
        memory, num_behind = self.waiting.memory, self.waiting.num_slots_behind
        batch = ScheduleBatch.prepare_for_extend(
            [*stretches], [*stretches.values()], memory, num_behind
        )
        self.decoding.enter(batch.requests)
        if mixes:
            self.decoding.prepare_mixed(self._running, clock)
            _count_steps(self._running)
            batch.mix_with_running(self._running)
            self._running = self._empty_batch()
        self._last = batch
        _count_launched(batch)
        return batch

    def _take_over(self) -> None:
        """Let requests run whose prompts ran elsewhere, as far as there is room for them."""
        if self.transfer is None or self.transfer.sends:
            return
        arrived = self.waiting.admit_arrived(self._num_pages_kept())
        if arrived:
            batch = self.transfer.enter(arrived)
            self.decoding.enter(batch.requests)
            self._running.merge(batch)

    def _decode_batch(self, clock: StepClock) -> ScheduleBatch | None:
        if not self._make_room():
            return None
        self.decoding.prepare(self._running, clock)
        _count_steps(self._running)
        _count_launched(self._running)
        return self._running

    def _join_running(self) -> None:
        """Let those decode whose prompt has run; a prompt that was cut comes back in line."""
        batch, self._last = self._last, None
        if batch is not None:
            batch.filter([place for place, samples in enumerate(batch.samples) if samples])
            self._running.merge(batch)

    def _drop_done(self) -> None:
        """Drop requests that need no further launch."""
        places = enumerate(self._running.requests)
        self._running.filter(
            [place for place, own in places if not (own.is_finished or own.is_launched_out)]
        )

    def _make_room(self) -> bool:
        """Retract until a step of each running request fits; tell whether any can be run now.

        No request is retracted for pages that the step under way gives back at its end.
        """
        requests, memory = self._running.requests, self.waiting.memory
        rows = [request.row for request in requests]
        missing = memory.pages_missing(rows, self.decoding.reach(self._running))
        if sum(missing) <= memory.pages.num_free:
            return bool(requests)
        # Enough comes back with the step under way: wait for it rather than retract.
        if sum(missing) <= memory.pages.num_free + self._num_pages_coming():
            return False
        if self.waiting.give_up_cut() is not None:
            self._num_retracted += 1
        for request in choose_retractions(requests, missing, memory):
            self.waiting.retract(request)
            self._num_retracted += 1
        keep = [place for place, request in enumerate(requests) if request.row]
        self._running.filter(keep)
        return sum(missing[place] for place in keep) <= memory.pages.num_free

    def _num_pages_kept(self) -> int:
        """Count the pages to be left by prompts: what each running request's next step may take."""
        rows = [request.row for request in self._running.requests]
        missing = self.waiting.memory.pages_missing(rows, self.decoding.reach(self._running))
        return sum(max(1, own) for own in missing)

    def _num_pages_coming(self) -> int:
        """Count the pages of requests whose last token is under way."""
        if self._in_flight is None:
            return 0
        batch = self._in_flight.batch
        return sum(
            self.waiting.memory.num_pages(request.row)
            for request, generation in zip(batch.requests, batch.generations, strict=True)
            if request.generation == generation and request.is_launched_out
        )

    def _process(self, step: Step) -> Sequence[NewToken]:
        """Take in a step's tokens, and let go of the requests that they end."""
        batch = step.batch
        made: list[NewToken] = []
        going_on: list[Request] = []
        accept_lens: list[int] = []
        tokens = self.launcher.tokens(step)
        results = zip(batch.requests, batch.generations, batch.samples, tokens, strict=True)
        for request, generation, samples, own in results:
            if not samples or request.generation != generation:
                continue  # its prompt goes on, or it has left since
            if batch.spec_info is not None:
                accept_lens.append(len(own))
            made += [NewToken(request, token) for token in request.take_step(own)]
            if request.is_finished:
                if self.transfer is not None and self.transfer.sends:
                    self.transfer.send(request)
                self._let_go(request)
            else:
                going_on.append(request)
        self.decoding.commit(going_on)
        step.clock.done_s = now_s()
        self.observer.observe(self._stats(step, len(made), accept_lens))
        return made

    def _let_go(self, request: Request) -> None:
        """Give back what a request has. Steps that read it may be under way (`release`)."""
        self._open.remove(request)
        if request.row:
            self.waiting.memory.release(request.row)
            request.leave()

    def _stats(self, step: Step, num_made: int, accept_lens: Sequence[int]) -> StepStats:
        batch, output = step.batch, step.output
        num_retracted, self._num_retracted = self._num_retracted, 0
        return StepStats(
            mode=batch.mode,
            num_requests=len(batch.requests),
            num_tokens=output.num_tokens,
            num_made=num_made,
            num_running=self.waiting.memory.rows.num_taken,
            num_waiting=len(self.waiting),
            num_retracted=num_retracted,
            total_seq_lens=total_seq_lens(batch),
            waits_for_lengths=step.clock.num_lengths > 0,
            bytes_to_host=step.bytes_to_host,
            bytes_to_device=step.bytes_to_device,
            graph_mode=output.graph_mode,
            in_halves=output.in_halves,
            clock=step.clock,
            accept_lens=tuple(accept_lens),
        )


def _count_launched(batch: ScheduleBatch) -> None:
    """Count the token that a step makes, at least, for each request which it makes one for."""
    for request, samples in zip(batch.requests, batch.samples, strict=True):
        request.num_launched += samples


def _count_steps(running: ScheduleBatch) -> None:
    """Count a decode step of each request."""
    for request in running.requests:
        request.num_steps_under_way += 1
