"""Two-batch overlap from prompts to tokens, and the rule that gives it its host lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from backend_caps_torch_native import TorchNative
from torch import Tensor

from backend_caps import HostSeqLens, Role
from backend_caps.relay import DeviceStreams, FutureMap, RelayPayload
from backend_caps.runtime.attention import PhaseBackends
from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.errors import TwoBatchLengthsError
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.model import load_llama, sample_tokens
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.pools import make_pools
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.staging import Staging
from backend_caps.runtime.two_batch import TwoBatchRunner, split
from tests.runtime.engines import make_engine, plan_of
from tests.runtime.memories import enter, make_batch, make_memory, make_request
from tests.runtime.oracle import Job, Oracle

TBO = "--enable-two-batch-overlap"
SIX_TOKENS = Sampling(max_new_tokens=6, stop_token_ids=frozenset())
SPECULATIVE = (
    *("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1"),
    *("--attention-backend", "torch_padded", "--disable-piecewise-cuda-graph"),
)
"""A server whose backends have all opted out of the mirror."""


class _Server:
    """Steps one after the other, each forward of two halves."""

    def __init__(self, oracle: Oracle, device: torch.device, backend: str) -> None:
        plan = plan_of("--attention-backend", backend, TBO, "--page-size", "4")
        streams = DeviceStreams(device)
        self._staging = Staging(streams)
        model = load_llama(oracle.folder, device)
        self._memory, site = make_pools(plan, model, EngineOptions(), self._staging)
        self._relay = FutureMap.from_plan(
            plan, pool_size=self._memory.rows.pool_size, device=device, streams=streams
        )
        first, second = (PhaseBackends(plan.uses, Role.TARGET, site) for _ in range(2))
        self._runner = TwoBatchRunner(model, (first, second))

    def prefill(self, jobs: Sequence[Job]) -> ScheduleBatch:
        """Run prompts as far as their last token but two."""
        requests = [make_request(number, job.prompt) for number, job in enumerate(jobs)]
        enter(self._memory, *requests)
        batch = self._extend(requests, [len(job.prompt) - 2 for job in jobs])
        self.run(batch, [])
        return batch

    def finish_prompts(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Make a batch of what is left of prompts."""
        return self._extend(batch.requests, [2] * len(batch.requests))

    def run(self, batch: ScheduleBatch, outputs: Sequence[list[int]]) -> None:
        """Run a step, and append its tokens to the outputs."""
        if batch.mode is ForwardMode.DECODE:
            self._relay.set_input_ids_sentinel(batch)
        self._relay.resolve_future(batch)
        forward = ForwardBatch.init_new(batch, self._staging)
        tokens = sample_tokens(self._runner(forward, forward.mode.phase), forward.sampling)
        self._relay.stash(batch.req_pool_indices, RelayPayload(tokens))
        for output, token in zip(outputs, tokens.tolist(), strict=False):
            output.append(token)

    def decode(self, batch: ScheduleBatch, outputs: Sequence[list[int]]) -> None:
        """Run a decode step."""
        batch.prepare_for_decode()
        self.run(batch, outputs)

    def _extend(self, requests: Sequence[Request], counts: Sequence[int]) -> ScheduleBatch:
        return ScheduleBatch.prepare_for_extend(requests, counts, self._memory, self._staging)


def _serve(server: _Server, early: Sequence[Job], late: Sequence[Job]) -> list[list[int]]:
    """Run prompts in stretches, decode, mixed batches and decode of all: each job's tokens."""
    of_early: list[list[int]] = [[] for _ in early]
    of_late: list[list[int]] = [[] for _ in late]
    running, waiting = server.finish_prompts(server.prefill(early)), server.prefill(late)
    server.run(running, of_early)
    server.decode(running, of_early)
    running.prepare_for_decode()
    mixed = server.finish_prompts(waiting)
    mixed.mix_with_running(running)
    server.run(mixed, of_late + of_early)
    for _ in range(8):
        server.decode(mixed, of_late + of_early)
    return of_early + of_late


@pytest.mark.parametrize("backend", ["torch_native", "torch_padded"])
def test_tokens_of_halves_equal_those_of_transformers(
    oracle: Oracle, device: torch.device, backend: str
) -> None:
    """Whatever a step is made of, not one token is another."""
    server = _Server(oracle, device, backend)

    outputs = _serve(server, oracle.jobs[5:10], oracle.jobs[10:14])

    _assert_begin_alike(outputs, oracle.tokens[5:14])


def test_plain_engine_decodes_two_requests_in_two_halves(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under two-batch overlap a backend prepares for one request of two, twice in each step."""
    prepare, sizes = TorchNative.init_forward_metadata, []

    def counted(backend: TorchNative, batch: ForwardBatch) -> None:
        if batch.mode is ForwardMode.DECODE:
            sizes.append(batch.batch_size)
        prepare(backend, batch)

    monkeypatch.setattr(TorchNative, "init_forward_metadata", counted)
    engine = make_engine(oracle.folder, TBO)
    requests = [engine.submit(job.prompt, SIX_TOKENS) for job in oracle.jobs[5:7]]
    engine.drain()

    assert [len(own.output) for own in requests] == [6, 6]
    assert (set(sizes), len(sizes) >= 2 * 5) == ({1}, True)


def _assert_begin_alike(outputs: Sequence[list[int]], expected: Sequence[list[int]]) -> None:
    """Compare as far as both go: an output here does not end at a stop token."""
    counts = [min(len(own), len(other)) for own, other in zip(outputs, expected, strict=True)]
    assert sum(counts) > 40
    cut = [own[:count] for own, count in zip(outputs, counts, strict=True)]
    assert cut == [own[:count] for own, count in zip(expected, counts, strict=True)]


@dataclass
class _SpecState:
    topk_p: Tensor | None = None
    topk_index: Tensor | None = None
    bonus_tokens: Tensor | None = None
    hidden_states: Tensor | None = None


def _speculative(*arguments: str) -> ForwardBatch:
    """Make a verify's batch, with the lengths that the relay of a server's plan has for it."""
    memory, staging = make_memory()
    batch = make_batch(memory, staging, 5, 3, 8)
    relay = FutureMap.from_plan(plan_of(*SPECULATIVE, *arguments), pool_size=16, device="cpu")
    relay.publish(batch.req_pool_indices, batch.seq_lens)
    batch.spec_info = _SpecState()
    relay.resolve_seq_lens_cpu(batch)
    return ForwardBatch(
        mode=ForwardMode.VERIFY,
        input_ids=torch.tensor([1, 2, 3]),
        positions=batch.seq_lens - 1,
        req_pool_indices=batch.req_pool_indices,
        seq_lens=batch.seq_lens,
        out_cache_loc=memory.slots_of(batch.req_pool_indices, batch.seq_lens - 1),
        seq_lens_cpu=batch.seq_lens_cpu,
        seq_lens_sum=batch.seq_lens_sum,
        seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound,
    )


def test_rule_gives_a_speculative_batch_the_lengths_that_its_split_takes() -> None:
    """With the flag the relay keeps a mirror, though no backend asks for one."""
    halves = split(_speculative(TBO))

    assert halves is not None
    assert [half.seq_lens_sum for half in halves] == [5, 3 + 8]


def test_split_without_the_rule_says_what_it_lacks() -> None:
    """Without the flag nobody keeps a mirror, and the batch cannot be cut."""
    batch = _speculative()

    with pytest.raises(TwoBatchLengthsError, match="its seq_lens_cpu is None"):
        split(batch)


def test_rule_alone_forces_the_mirror() -> None:
    """The same server keeps its lengths on the device without the flag, and not with it."""
    plans = plan_of(*SPECULATIVE), plan_of(*SPECULATIVE, TBO)

    values = [plan["host_seq_lens"].value for plan in plans]

    assert values == [HostSeqLens.NONE, HostSeqLens.EXACT]
