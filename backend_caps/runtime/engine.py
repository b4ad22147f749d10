"""The engine: a model's folder, a plan and a device, from token ids to token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import torch

from backend_caps.capability.kind import Phase, Role
from backend_caps.capability.sizes import Conflict, Exact
from backend_caps.capability.vocabulary import BatchKind, SharedReadsEnd
from backend_caps.relay import FutureMap
from backend_caps.relay.streams import DeviceStreams, StepStreams
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.admission import WaitingLine, abort
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.errors import PromptError, RequestTooLongError
from backend_caps.runtime.graphs import GraphRunner
from backend_caps.runtime.memory import PagePool, ReqToTokenPool, RequestMemory, TokenToKVPool
from backend_caps.runtime.model import Llama, load_llama
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.scheduler import NewToken, Scheduler
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import NoObserver, StepObserver
from backend_caps.runtime.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the plan does not say: how much room there is, and how steps are cut."""

    max_running_requests: int = 64
    """Rows of the request pool, row 0 aside."""
    max_total_tokens: int | None = None
    """Tokens that the KV cache holds; None is room for 8 full contexts."""
    max_prefill_tokens: int = 8192
    """The most prompt tokens of a step; a longer prompt has a step of its own."""
    chunked_prefill_size: int | None = None
    """Cut prompts so that no step has more prompt tokens; None runs every prompt whole."""
    dtype: torch.dtype | None = None
    """What the model computes in; None is what its folder says."""
    graph_batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """The batch sizes that graphs are captured for; a batch is padded to the next one."""


@dataclass(frozen=True, slots=True)
class _Site:
    """What backends are built from."""

    req_to_token_pool: ReqToTokenPool
    token_to_kv_pool: TokenToKVPool


_FULL_CONTEXTS = 8


class Engine:
    """Generate with a model under a plan.

    Args:
        model_path: a Hugging Face folder of a Llama-architecture model.
        plan: names the backends, and says what they need and support.
        device: where the model runs.
        options: room and cutting.
        observer: is told of every step.
        streams: the device's, where its declared traits are not the ones to use.

    Raises:
        BackendCapsError: the folder, the plan or an option cannot be served.
    """

    def __init__(
        self,
        model_path: str | PathLike[str],
        plan: Plan,
        device: torch.device | str,
        *,
        options: EngineOptions | None = None,
        observer: StepObserver | None = None,
        streams: DeviceStreams | None = None,
    ) -> None:
        self.plan = plan
        self.options = options = options or EngineOptions()
        self.streams = DeviceStreams(device) if streams is None else streams
        self.device = self.streams.device
        self.step_streams = StepStreams.drawn_from(self.streams)
        self.model = load_llama(model_path, device=self.device, dtype=options.dtype)
        self.memory, site = self._make_memory()
        self.backends = PhaseBackends(plan.uses, Role.TARGET, site)
        self.relay = FutureMap.from_plan(
            plan,
            pool_size=self.memory.rows.pool_size,
            device=self.device,
            streams=self.streams,
        )
        self.graphs = self._capture()
        self.waiting = WaitingLine(
            self.memory,
            max_prefill_tokens=options.max_prefill_tokens,
            chunked_prefill_size=options.chunked_prefill_size,
        )
        self.scheduler = Scheduler(
            worker=Worker(self.model, self.backends, self.graphs),
            memory=self.memory,
            relay=self.relay,
            staging=self._staging,
            step_streams=self.step_streams,
            waiting=self.waiting,
            mixed=plan.flags.enable_mixed_chunk,
            observer=observer or NoObserver(),
        )
        self._num_requests = 0
        self.streams.synchronize()

    def generate(
        self,
        token_ids: Sequence[Sequence[int]],
        max_new_tokens: int = 16,
        *,
        sampling: Sampling | None = None,
    ) -> list[list[int]]:
        """Return the tokens that follow each prompt.

        Args:
            token_ids: the prompts.
            max_new_tokens: the most tokens of each output, where `sampling` is not given.
            sampling: how tokens are chosen, and when they end; greedy by default.
        """
        requests = [self.submit(prompt, self._sampling(sampling, max_new_tokens)) for prompt in token_ids]
        while any(not request.is_finished for request in requests):
            self.step()
        return [request.output for request in requests]

    def stream(
        self,
        token_ids: Sequence[Sequence[int]],
        max_new_tokens: int = 16,
        *,
        sampling: Sampling | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Yield (place of the prompt, token), as soon as the host has each token."""
        requests = [self.submit(prompt, self._sampling(sampling, max_new_tokens)) for prompt in token_ids]
        places = {id(request): place for place, request in enumerate(requests)}
        try:
            while any(not request.is_finished for request in requests):
                for made in self.step():
                    if id(made.request) in places:
                        yield places[id(made.request)], made.token
        finally:
            for request in requests:
                abort(request)

    def submit(self, prompt: Sequence[int], sampling: Sampling) -> Request:
        """Take a request in; `step` runs it.

        Raises:
            PromptError: the prompt is empty, or holds a token that the model does not have.
            RequestTooLongError: it can never run.
        """
        self._check(prompt, sampling)
        self._num_requests += 1
        request = Request(number=self._num_requests, prompt=tuple(prompt), sampling=sampling)
        self.scheduler.add(request)
        return request

    def abort(self, request: Request) -> None:
        """Give a request up; what it has is free before the next step."""
        abort(request)

    def step(self) -> Sequence[NewToken]:
        """Run the scheduler's loop once, and return the tokens that the host got."""
        if self.plan.flags.disable_overlap_schedule:
            return self.scheduler.step_plain()
        return self.scheduler.step_overlapped()

    def drain(self) -> None:
        """Run until no request waits or runs, and the device has nothing left to do."""
        while self.scheduler.has_work:
            self.step()
        self.streams.synchronize()
