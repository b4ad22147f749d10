"""The engine: a model's folder, a plan and a device, from token ids to token ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed import ProcessGroup

from backend_caps.capability.kind import Phase, Role
from backend_caps.relay import FutureMap
from backend_caps.relay.streams import DeviceStreams, StepStreams
from backend_caps.resolution.plan import Plan
from backend_caps.runtime.admission import WaitingLine
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.errors import PromptError, RequestTooLongError
from backend_caps.runtime.graphs import GraphRunner, capture_graphs, choose_graphs
from backend_caps.runtime.memory import PagePool, ReqToTokenPool, RequestMemory, TokenToKVPool
from backend_caps.runtime.model import load_llama
from backend_caps.runtime.options import (
    KV_CACHE_DTYPES,
    EngineOptions,
    buckets_of,
    check_flags,
    page_size_of,
)
from backend_caps.runtime.pipeline import (
    ChunkLimits,
    ChunkProfiler,
    ChunkSizes,
    agree_on_chunks,
    profile_chunks,
)
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.scheduler import NewToken, Scheduler
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.stats import NoObserver, StepObserver
from backend_caps.runtime.step import StepLauncher
from backend_caps.runtime.worker import Worker


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
        model_path: str | Path,
        plan: Plan,
        device: torch.device | str,
        *,
        options: EngineOptions | None = None,
        observer: StepObserver | None = None,
        streams: DeviceStreams | None = None,
    ) -> None:
        check_flags(plan.flags)
        self.plan = plan
        self.options = options or EngineOptions()
        self.streams = DeviceStreams(device) if streams is None else streams
        self.device = self.streams.device
        self.step_streams = StepStreams.drawn_from(self.streams)
        self.staging = Staging(self.streams)
        self.model = load_llama(
            model_path,
            self.device,
            dtype=self.options.dtype,
            num_positions=plan.flags.context_length,
        )
        self.memory, site = self._make_memory()
        self.backends = PhaseBackends(plan.uses, Role.TARGET, site)
        self.relay = FutureMap.from_plan(
            plan, pool_size=self.memory.rows.pool_size, device=self.device, streams=self.streams
        )
        self.graph_choices = choose_graphs(plan, self.streams.traits, buckets_of(self.options))
        self._worker = Worker(self.model, self.backends, self._capture())
        self.scheduler = self._make_scheduler(observer or NoObserver())
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
        requests = self._submit_all(token_ids, sampling or Sampling(max_new_tokens=max_new_tokens))
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
        """Yield (place of the prompt, token), as soon as the host has each token.

        Whoever runs the steps: tokens that came meanwhile are yielded first. Who stops reading
        gives the requests up.
        """
        requests = self._submit_all(token_ids, sampling or Sampling(max_new_tokens=max_new_tokens))
        num_yielded = [0] * len(requests)
        try:
            while True:
                runs = any(not request.is_finished for request in requests)
                for place, request in enumerate(requests):
                    while num_yielded[place] < len(request.output):
                        num_yielded[place] += 1
                        yield place, request.output[num_yielded[place] - 1]
                if not runs:
                    return
                self.step()
        finally:
            for request in requests:
                self.abort(request)

    def submit(self, prompt: Sequence[int], sampling: Sampling) -> Request:
        """Take a request in; `step` runs it.

        Raises:
            PromptError: the prompt is empty, or holds a token that the model does not have.
            RequestTooLongError: it can never run.
        """
        self._check(prompt, sampling)
        self._num_requests += 1
        stops = sampling.stop_token_ids
        request = Request(
            number=self._num_requests,
            prompt=tuple(prompt),
            sampling=sampling,
            stop_token_ids=frozenset(self.model.config.eos_token_ids) if stops is None else stops,
        )
        self.scheduler.add(request)
        return request

    def _submit_all(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Request]:
        """Take all prompts in, or none where one of them is refused."""
        for prompt in prompts:
            self._check(prompt, sampling)
        return [self.submit(prompt, sampling) for prompt in prompts]

    def abort(self, request: Request) -> None:
        """Give a request up: its output ends where it is, and what it has is free."""
        self.scheduler.abort(request)

    def step(self) -> Sequence[NewToken]:
        """Run the scheduler's loop once, and return the tokens that the host got."""
        if self.plan.flags.disable_overlap_schedule:
            return self.scheduler.step_plain()
        return self.scheduler.step_overlapped()

    def balance_chunks(self, group: ProcessGroup | None = None) -> ChunkSizes:
        """Time prefills, and from then on cut prompts into chunks that take the same time.

        A later chunk of a prompt attends to more, so it has fewer tokens. What is on at the end is
        returned; where it is off, prompts are cut as the options say, and the answer has the
        reason. Call it before the first request. Sync: the device, for every size that is timed.

        Args:
            group: the ranks of a pipeline, which all call this; the first one's times count.

        Raises:
            ChunkLimitsError: the options' `chunked_prefill_size` is none, or below a page.
        """
        limits = ChunkLimits.of(self.options.chunked_prefill_size or 0, self.memory.page_size)
        profiler = ChunkProfiler(
            runner=self._worker,
            memory=self.memory,
            relay=self.relay,
            staging=self.staging,
            step_streams=self.step_streams,
            vocab_size=self.model.config.vocab_size,
        )

        def profile() -> ChunkSizes:
            return profile_chunks(profiler, limits)

        sizes = profile() if group is None else agree_on_chunks(limits, group, profile)
        self.waiting.chunk_rule = sizes
        return sizes

    def drain(self) -> None:
        """Run until no request waits or runs, and the device has nothing left to do."""
        while self.scheduler.has_work:
            self.step()
        self.streams.synchronize()

    def _make_memory(self) -> tuple[RequestMemory, _Site]:
        """Make the pools: as many slots as the options say, in whole pages."""
        config, options = self.model.config, self.options
        context = self.model.num_positions
        page_size = page_size_of(self.plan)
        num_tokens = options.max_total_tokens or _FULL_CONTEXTS * context
        num_pages = num_tokens // page_size
        rows = ReqToTokenPool(
            max_requests=options.max_running_requests,
            max_context_len=context,
            page_size=page_size,
            device=self.device,
        )
        cache = TokenToKVPool(
            num_slots=(num_pages + 1) * page_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            v_head_dim=config.head_dim,
            dtype=KV_CACHE_DTYPES.get(self.plan.flags.kv_cache_dtype, self.model.dtype),
            device=self.device,
        )
        return RequestMemory(rows, PagePool(num_pages), self.staging), _Site(rows, cache)

    def _make_scheduler(self, observer: StepObserver) -> Scheduler:
        launcher = StepLauncher(
            worker=self._worker,
            relay=self.relay,
            staging=self.staging,
            step_streams=self.step_streams,
        )
        self.waiting = WaitingLine(
            self.memory,
            max_prefill_tokens=self.options.max_prefill_tokens,
            chunked_prefill_size=self.options.chunked_prefill_size,
        )
        return Scheduler(
            launcher=launcher,
            memory=self.memory,
            staging=self.staging,
            step_streams=self.step_streams,
            waiting=self.waiting,
            mixed=self.plan.flags.enable_mixed_chunk,
            observer=observer,
        )

    def _check(self, prompt: Sequence[int], sampling: Sampling) -> None:
        vocab_size = self.model.config.vocab_size
        if not prompt:
            raise PromptError(problem="holds no token", expected="at least one was expected")
        strays = sorted({token for token in prompt if not 0 <= token < vocab_size})
        if strays:
            expected = f"the model's are 0 to {vocab_size - 1}"
            raise PromptError(problem=f"holds token {strays[0]}", expected=expected)
        memory = self.memory
        limits = {
            "the context": memory.rows.max_context_len,
            "the KV cache": memory.pages.num_pages * memory.page_size,
        }
        for name, limit in limits.items():
            if len(prompt) + sampling.max_new_tokens > limit:
                raise RequestTooLongError(
                    num_prompt_tokens=len(prompt),
                    max_new_tokens=sampling.max_new_tokens,
                    limit=limit,
                    limited_by=name,
                )

    def _capture(self) -> Mapping[Phase, GraphRunner]:
        return capture_graphs(
            self.model,
            self.backends,
            self.plan,
            self.graph_choices,
            streams=self.streams,
            stream=self.step_streams.forward,
        )
