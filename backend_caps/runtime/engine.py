"""The engine: a model's folder and a configuration, from token ids to token ids."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self
from weakref import finalize

import torch

from backend_caps.capability.kind import Role
from backend_caps.relay import FutureMap
from backend_caps.relay.streams import DeviceStreams
from backend_caps.resolution.plan import Plan
from backend_caps.resolution.uses import Use
from backend_caps.runtime.assembly import Parts
from backend_caps.runtime.chunk_sizes import ChunkProfiler, ChunkSizes
from backend_caps.runtime.configuration import configuration_of
from backend_caps.runtime.disaggregation import Handover, PromptTransfer
from backend_caps.runtime.errors import EngineClosedError, EngineError, EngineFailedError
from backend_caps.runtime.graphs.runner import CaptureObserver
from backend_caps.runtime.options import EngineOptions, check_flags
from backend_caps.runtime.request import Request, Sampling, check_length, checked_tokens
from backend_caps.runtime.scheduler import NewToken, Scheduler
from backend_caps.runtime.stats import EveryObserver, StepObserver
from backend_caps.runtime.step import StepLauncher
from backend_caps.startup.configuration import Configuration
from backend_caps.startup.graph_choice import GraphChoice


class Engine:
    """Generate with a model under a configuration.

    Args:
        model_path: a Hugging Face folder of a Llama-architecture model.
        configuration: of `configure_engine` for this folder and these options. Its plan names the
            backends, its FutureMap is the one that steps go through, on its device.
        options: room and cutting.
        observer: is called with every step.
        draft_model_path: a Hugging Face folder of what drafts: an EAGLE or EAGLE3 head or a small
            model, as the plan's `--speculative-algorithm` says.
        capture_observer: is called on the progress of captures.

    Raises:
        EngineError: `configuration`: it was made for other models or options.
        BackendCapsError: the folder, the plan or an option cannot be served.
    """

    def __init__(
        self,
        model_path: str | Path,
        configuration: Configuration,
        *,
        options: EngineOptions | None = None,
        observer: StepObserver | None = None,
        draft_model_path: str | Path | None = None,
        capture_observer: CaptureObserver | None = None,
    ) -> None:
        check_flags(configuration.plan.flags)
        self.configuration = configuration
        self.options = options or EngineOptions()
        self.streams = configuration.streams
        self.device = self.streams.device
        parts = Parts(configuration, self.options, model_path, draft_model_path, capture_observer)
        self.resources, self.model, self.graphs = parts.resources, parts.model, parts.graphs
        self.memory, self.step_streams = self.resources.memory, self.resources.step_streams
        self.backends, *_ = self.all_backends = parts.backends
        """Every attention that a step runs, by role, as `Parts` has them."""
        follows, flags = parts.decoding.follows_results, configuration.plan.flags
        self.overlaps = not (flags.disable_overlap_schedule or follows)
        """Whether a step is built while the one before it runs."""
        self._worker, self._transfer, self.waiting = parts.worker, parts.transfer, parts.waiting
        self.scheduler = Scheduler(
            launcher=StepLauncher(parts.runner, self.resources),
            waiting=parts.waiting,
            decoding=parts.decoding,
            mixed=flags.enable_mixed_chunk,
            observer=observer or EveryObserver(()),
            transfer=parts.transfer,
        )
        self._num_requests = 0
        self._failure: str | None = None
        self._closing = finalize(self, self.streams.device_wait())  # nothing is freed under a step
        self._closing.atexit = False
        self.streams.synchronize()

    @classmethod
    def from_plan(
        cls,
        model_path: str | Path,
        plan: Plan,
        device: torch.device | str,
        *,
        streams: DeviceStreams | None = None,
        options: EngineOptions | None = None,
        observer: StepObserver | None = None,
        draft_model_path: str | Path | None = None,
        capture_observer: CaptureObserver | None = None,
    ) -> Self:
        """Make an engine of a plan that is already resolved: `configuration_of`, then `Engine`.

        Raises:
            BackendCapsError: the folder, the plan or an option cannot be served.
        """
        return cls(
            model_path,
            configuration_of(
                plan,
                model_path,
                device=device,
                draft_model_path=draft_model_path,
                options=options,
                streams=streams,
            ),
            options=options,
            observer=observer,
            draft_model_path=draft_model_path,
            capture_observer=capture_observer,
        )

    @property
    def plan(self) -> Plan:
        """What the engine serves under."""
        return self.configuration.plan

    @property
    def relay(self) -> FutureMap:
        """The map that every step goes through: the configured one."""
        return self.configuration.future_map

    @property
    def graph_choices(self) -> tuple[GraphChoice, ...]:
        """How each kind of batch of the target runs in each phase."""
        return self.configuration.graph_choices[Role.TARGET]

    def __enter__(self) -> Self:
        """Use the engine within a `with` block."""
        return self

    def __exit__(self, *_raised: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Wait for the step under way, and run no other; deleting the engine does the same.

        Sync: the device, unless it was lost with a step that failed.
        """
        with nullcontext() if self._failure is None else suppress(RuntimeError):
            self._closing()

    def generate(
        self,
        token_ids: Sequence[Sequence[int]],
        max_new_tokens: int = 16,
        *,
        sampling: Sampling | None = None,
    ) -> list[list[int]]:
        """Return the tokens that follow each prompt.

        `max_new_tokens` bounds each output where no `sampling` is given; greedy by default.
        """
        self._require_mode("generate", "null")
        requests = self._enter(token_ids, sampling or Sampling(max_new_tokens=max_new_tokens))
        for _ in self._tokens_of(requests):
            pass
        if not self.scheduler.has_requests:
            self.drain()
        return [request.output for request in requests]

    def stream(
        self,
        token_ids: Sequence[Sequence[int]],
        max_new_tokens: int = 16,
        *,
        sampling: Sampling | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Return (index of the prompt, token) of each token, as soon as the host has it.

        A reader that stops early aborts its requests.
        """
        self._require_mode("generate", "null")
        requests = self._enter(token_ids, sampling or Sampling(max_new_tokens=max_new_tokens))
        return self._tokens_of(requests)

    def _tokens_of(self, requests: Sequence[Request]) -> Generator[tuple[int, int]]:
        """Run steps until the requests have ended; those that have not at the end are given up."""
        num_yielded = [0] * len(requests)
        places: Sequence[int] = range(len(requests))
        try:
            while places:
                # Read before the yields: the caller may run steps between them.
                left = [place for place in places if not requests[place].is_finished]
                for place in places:
                    output = requests[place].output
                    while num_yielded[place] < len(output):
                        num_yielded[place] += 1
                        yield place, output[num_yielded[place] - 1]
                places = left
                if any(not requests[place].is_finished for place in places):
                    self.step()
        finally:
            for request in requests:
                self.abort(request)

    def submit(self, prompt: Sequence[int], sampling: Sampling) -> Request:
        """Take a request in; `step` runs it.

        Raises:
            PromptError: the prompt is empty, or holds a token that the model does not have.
            RequestTooLongError: it can never run.
            EngineError: `disaggregation-mode`: the engine runs prompts for others, or goes on
                with theirs.
        """
        self._require_mode("submit", "null")
        return self._enter((prompt,), sampling)[0]

    def _enter(self, prompts: Iterable[Sequence[int]], sampling: Sampling) -> list[Request]:
        """Take all prompts in, or none where one of them is refused."""
        checked = [self._checked(prompt, sampling) for prompt in prompts]
        requests = [self._made(prompt, sampling) for prompt in checked]
        for request in requests:
            self.scheduler.add(request)
        return requests

    def _made(self, prompt: tuple[int, ...], sampling: Sampling) -> Request:
        self._require_running()
        self._num_requests += 1
        stops = sampling.stop_token_ids
        return Request(
            number=self._num_requests,
            prompt=prompt,
            sampling=sampling,
            stop_token_ids=frozenset(self.model.config.eos_token_ids) if stops is None else stops,
        )

    def hand_over(
        self, token_ids: Sequence[Sequence[int]], sampling: Sampling
    ) -> Iterator[Handover]:
        """Return what another engine goes on from, of each prompt as soon as it has run.

        A reader that stops aborts the rest. Sync: the copy of each to the host, where it is read.

        Args:
            token_ids: the prompts.
            sampling: how their tokens are chosen, the first one's too, and when they end.

        Raises:
            EngineError: `disaggregation-mode`: the plan is not of `--disaggregation-mode prefill`.
            PromptError, RequestTooLongError: as of `submit`; then no prompt waits.
        """
        transfer = self._require_mode("hand_over", "prefill")
        assert transfer is not None, "an engine of this mode has one"
        requests = self._enter(token_ids, replace(sampling, max_new_tokens=1))
        return transfer.handovers(requests, sampling, step=self.step, abort=self.abort)

    def take_over(self, handover: Handover) -> Request:
        """Take in a request whose prompt another engine ran; `step` runs the rest.

        Its output has the first token already. Where it is retracted, its prompt runs again, here.

        Raises:
            EngineError: `disaggregation-mode`: the plan is not of `--disaggregation-mode decode`;
                `handover`: it is of another model, or of other shapes.
            PromptError, RequestTooLongError: as of `submit`.
        """
        transfer = self._require_mode("take_over", "decode")
        assert transfer is not None, "an engine of this mode has one"
        states = transfer.fitting(handover)
        prompt = self._checked(handover.prompt, handover.sampling)
        checked_tokens((handover.token,), self.model.config.vocab_size)
        request = self._made(prompt, handover.sampling)
        request.take(handover.token)
        if not request.is_finished:
            request.states = states
            self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        """Give a request up: its output ends where it is, and what it has is free."""
        self.scheduler.abort(request)

    def step(self) -> Sequence[NewToken]:
        """Run the scheduler's loop once, and return the tokens that the host got.

        Raises:
            EngineFailedError: a step failed before, also in an observer or by an interrupt.
            EngineClosedError: `close` was called.
        """
        self._require_running()
        try:
            if self.plan.flags.disable_overlap_schedule:
                return self.scheduler.step_plain()
            return self.scheduler.step_overlapped()
        except BaseException as error:
            # Its words alone: the error has the frames, and they have this engine.
            self._failure = f"{type(error).__name__}: {error}"
            # What the step has enqueued reads tensors that go with it.
            with suppress(RuntimeError):
                self.streams.synchronize()
            raise

    def _require_mode(self, method: str, expected: str) -> PromptTransfer | None:
        """Refuse what engines of another `--disaggregation-mode` do."""
        mode = self.plan.flags.disaggregation_mode
        if mode != expected:
            raise EngineError(
                "disaggregation-mode",
                f"{method} was asked of an engine of --disaggregation-mode {mode}; one of mode "
                f"{expected} was expected. Ask such an engine, or resolve this one's plan with "
                f"--disaggregation-mode {expected}.",
            )
        return self._transfer

    def _require_running(self) -> None:
        if not self._closing.alive:
            raise EngineClosedError
        if self._failure is not None:
            raise EngineFailedError(cause=self._failure)

    @property
    def spec_v2_attn_backends(self) -> tuple[Use, ...]:
        """List the uses that steps run: of the target, the draft and its draft-extend."""
        by_role = {own.role: own for own in self.all_backends}
        return tuple(use for own in by_role.values() for use in own.uses.values())

    def balance_chunks(self) -> ChunkSizes:
        """Time prefills, and from then on cut prompts into chunks that take the same time.

        A later chunk of a prompt attends to more, so it has fewer tokens. Where times give no fit,
        prompts are cut as the options say, and the answer has the reason. Call it before the first
        request. Sync: the device, for every size that is timed.

        Raises:
            EngineError: `chunk-sizes`: the options' `chunked_prefill_size` is none, or below a
                page.
        """
        self._require_running()
        vocab_size = self.model.config.vocab_size
        profiler = ChunkProfiler(self._worker.forward, self.resources, vocab_size)
        size = self.options.chunked_prefill_size or 0
        self.waiting.chunk_sizes = sizes = profiler.profile(size, self.memory.page_size)
        return sizes

    def drain(self) -> None:
        """Run until no request waits or runs, and the device has nothing left to do."""
        while self.scheduler.has_work:
            self.step()
        self.streams.synchronize()

    def _checked(self, prompt: Sequence[int], sampling: Sampling) -> tuple[int, ...]:
        tokens = checked_tokens(prompt, self.model.config.vocab_size)
        check_length(len(tokens), sampling.max_new_tokens, self.memory)
        return tokens
