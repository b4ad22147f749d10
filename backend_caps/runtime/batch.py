"""The scheduler's batch: what the next step is made of.

Its lengths stand twice, on the device and in the mirror on the host, and the two are equal
whenever a method of it has returned. No tensor of it is ever written to: a step that runs may
still read the old one, so every change makes a new one. No list is either. A forward therefore
gets a copy, and keeps what it got.

Shapes: B requests in the batch, T prompt tokens, R decode rows mixed in after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.relay import SpecInfo
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.request import Request


def token_positions(
    prefix_lens: Tensor, extend_lens: Tensor, num_tokens: int
) -> tuple[Tensor, Tensor]:
    """Lay a batch's tokens out, request after request.

    prefix_lens  [B] int64 or int32, device  tokens before this step's
    extend_lens  [B] int64 or int32, device  this step's tokens, `num_tokens` in all
    returns      [T] int64, device           the place in the batch of each token's request
                 [T] int64, device           each token's position in its context

    Stream: the current one. Sync: none; T is known on the host. Allocates: both results.
    """
    device = prefix_lens.device
    places = torch.arange(prefix_lens.shape[0], device=device)
    owners = torch.repeat_interleave(places, extend_lens, output_size=num_tokens)
    starts = extend_lens.cumsum(0) - extend_lens
    offsets = (prefix_lens - starts)[owners]
    return owners, torch.arange(num_tokens, device=device) + offsets


class ForwardMode(Enum):
    """What kind of step a batch is."""

    EXTEND = "extend"
    """Each request brings a stretch of its prompt."""
    DECODE = "decode"
    """Each request brings its last token."""
    MIXED = "mixed"
    """Stretches of prompts, then the last tokens of others."""
    IDLE = "idle"
    """No request: other ranks have some."""
    VERIFY = "verify"
    """Each request brings its last token and a tree of drafts: a forward of a decode step."""
    DRAFT_EXTEND = "draft_extend"
    """Each request brings what was accepted, to the draft model: a forward of a decode step."""

    @property
    def phase(self) -> Phase:
        """Whose backend runs it: decode rows of a mixed batch are stretches of one token."""
        match self:
            case ForwardMode.DECODE:
                return Phase.DECODE
            case ForwardMode.VERIFY | ForwardMode.DRAFT_EXTEND:
                return Phase.VERIFY
            case _:
                return Phase.PREFILL


@dataclass(slots=True, kw_only=True)
class ScheduleBatch:
    """One step's requests. All its methods run on the schedule stream, and none makes it wait."""

    memory: RequestMemory
    """Gives requests their pages, knows where their tokens stand, and has the staging."""
    mode: ForwardMode
    """What kind of step it is."""
    requests: tuple[Request, ...] = ()
    """Whose step it is."""
    generations: tuple[int, ...] = ()
    """The stay of each request that the step is of; a result of an earlier stay is dropped."""
    req_pool_indices: Tensor
    """[B] int64, device: their rows."""
    req_pool_indices_cpu: Tensor
    """[B] int64, host: the same."""
    seq_lens: Tensor
    """[B] int64, device: each context's length, this step's tokens included; in a speculative
    step, whose tokens are not known before it has run, the length before them."""
    seq_lens_cpu: Tensor | None
    """[B] int64, host: the mirror; None without one."""
    seq_lens_sum: int | None = None
    """The mirror's sum, where it is known; `ForwardBatch.init_new` computes it otherwise."""
    seq_lens_cpu_upper_bound: Tensor | None = None
    """[B] int64, host: never below `seq_lens`; None where the mirror says more, and where empty
    needs it."""
    input_ids: Tensor | None = None
    """[B] int64, device: tokens, or sentinels while `input_ids_pending`."""
    input_ids_pending: bool = False
    """Whether `input_ids` are sentinels."""
    prefill_input_ids_cpu: Tensor | None = None
    """[T] int64, pinned host: prompt tokens, which cross at forward entry."""
    mix_running_indices: Tensor | None = None
    """[R] int64, device: rows of the decode tokens that follow the prompts'."""
    out_cache_loc: Tensor | None = None
    """[T + R] or [B] int64, device: where this step's keys and values go."""
    extend_seq_lens: tuple[int, ...] | Tensor | None = None
    """[B] this step's tokens of each request, on the host, or int64 on the device."""
    mixed_lens_cpu: tuple[int, ...] | None = None
    """[B] the same on the host, where `extend_seq_lens` is on the device."""
    extend_prefix_lens: tuple[int, ...] | Tensor | None = None
    """[B] tokens of each request before this step's; on the same side."""
    samples: tuple[bool, ...] = ()
    """Which requests this step makes a token of: all but those with more prompt to come."""
    next_prompt_ids: tuple[int, ...] = ()
    """The prompt's token behind each request's tokens; -1 where this step makes it."""
    spec_info: SpecInfo | None = None
    """The draft worker's state; None outside speculative decode."""

    @classmethod
    def empty(cls, memory: RequestMemory) -> Self:
        """Make a batch without requests: one to merge others into, or an idle step."""
        empty = torch.zeros(0, dtype=torch.int64, device=memory.staging.streams.device)
        batch = cls.of_requests(memory, (), (), empty, empty)
        batch.mode = ForwardMode.IDLE
        batch.input_ids = batch.out_cache_loc = empty
        return batch

    @classmethod
    def of_requests(
        cls,
        memory: RequestMemory,
        requests: Sequence[Request],
        lengths: Sequence[int],
        rows: Tensor,
        seq_lens: Tensor,
    ) -> Self:
        """Make a batch of requests whose rows and lengths are on the host and on the device.

        rows      [B] int64, device
        seq_lens  [B] int64, device

        Args:
            memory: where the requests have rows and pages.
            requests: B of them.
            lengths: the same as `seq_lens`.
            rows: as above.
            seq_lens: as above.
        """
        return cls(
            memory=memory,
            mode=ForwardMode.EXTEND,
            requests=tuple(requests),
            generations=tuple(request.generation for request in requests),
            req_pool_indices=rows,
            req_pool_indices_cpu=_host([request.row for request in requests]),
            seq_lens=seq_lens,
            seq_lens_cpu=_host(lengths),
            seq_lens_sum=sum(lengths),
            samples=(True,) * len(requests),
        )

    @classmethod
    def prepare_for_extend(
        cls,
        requests: Sequence[Request],
        num_tokens: Sequence[int],
        memory: RequestMemory,
        num_slots_behind: int = 0,
    ) -> Self:
        """Make a batch of the next stretch of each request's prompt.

        Token ids stay on the host, pinned, until the forward takes them (`resolve_future`).

        Args:
            requests: each has a row.
            num_tokens: how many tokens of each.
            memory: gives them their pages, and carries lengths and tokens to the device.
            num_slots_behind: slots behind each stretch that the step writes to as well.

        Raises:
            OutOfPagesError: the KV cache is too full; nothing has changed.
        """
        staging, prefixes = memory.staging, tuple(request.num_prefilled for request in requests)
        ends = [start + count for start, count in zip(prefixes, num_tokens, strict=True)]
        rows = [request.row for request in requests]
        memory.grow(rows, [end + num_slots_behind for end in ends])
        stretches = zip(requests, prefixes, ends, strict=True)
        ids = [token for own, start, end in stretches for token in own.prefill[start:end]]
        numbers = staging.upload((rows, ends, prefixes, num_tokens))
        device_rows, seq_lens, device_prefixes, device_lens = numbers.unbind()
        owners, positions = token_positions(device_prefixes, device_lens, len(ids))
        for request, end in zip(requests, ends, strict=True):
            request.num_prefilled = end
        batch = cls.of_requests(memory, requests, ends, device_rows, seq_lens)
        batch.prefill_input_ids_cpu = staging.stage(ids)
        batch.out_cache_loc = memory.slots_of(device_rows[owners], positions)
        batch.extend_seq_lens, batch.extend_prefix_lens = tuple(num_tokens), prefixes
        batch.samples = tuple(not request.num_left_to_prefill for request in requests)
        batch.next_prompt_ids = tuple(
            own.prefill[own.num_prefilled] if own.num_left_to_prefill else -1 for own in requests
        )
        return batch

    def prepare_for_decode(self) -> None:
        """Make this batch's next step: one more token of each request.

        Raises:
            OutOfPagesError: the KV cache is too full; nothing has changed.
        """
        self._grow_for_decode([length + 1 for length in self.mirror.tolist()])
        self.make_plain()

    def prepare_for_speculation(self, lengths: Sequence[int], spec_info: SpecInfo) -> None:
        """Make this batch's next step a speculative one.

        How far it reaches is known on the device alone: there its slots are looked up, by lengths
        that the relay has.

        Args:
            lengths: what each context may come to, the step's drafts included: an upper bound.
            spec_info: takes the draft worker's state.

        Raises:
            OutOfPagesError: the KV cache is too full; nothing has changed.
        """
        self._grow_for_decode(lengths)
        self.spec_info = spec_info

    def _grow_for_decode(self, lengths: Sequence[int]) -> None:
        self.memory.grow([request.row for request in self.requests], lengths)
        self._forget_the_step()
        self.mode = ForwardMode.DECODE
        self.samples = (True,) * len(self.requests)

    def make_plain(self) -> None:
        """Make a decode step one of a token a request, as a speculative one's row is when mixed.

        Slots come from the lengths before the token is added, out of place: a step that runs may
        still read the old lengths. What the host has of them grows with them, and what it does not
        have it does not get.
        """
        self.out_cache_loc = self.memory.slots_of(self.req_pool_indices, self.seq_lens)
        self.seq_lens = self.seq_lens + 1
        self.seq_lens_cpu = _plus_one(self.seq_lens_cpu)
        self.seq_lens_cpu_upper_bound = _plus_one(self.seq_lens_cpu_upper_bound)
        self.seq_lens_sum = None
        self.spec_info = None

    def mix_with_running(self, running: ScheduleBatch) -> None:
        """Append decode rows to this batch of prompts; `running` is prepared for decode.

        Their tokens are read from the relay at forward entry, by `mix_running_indices`. Where the
        host does not know how long they are, all extend lengths are on the device.
        """
        assert self.out_cache_loc is not None, "a prepared batch has slots"
        assert running.out_cache_loc is not None, "a prepared batch has slots"
        slots = torch.cat((self.out_cache_loc, running.out_cache_loc))
        lens, prefixes, lens_cpu = self._mixed_lens(running)
        staged, next_ids = self.prefill_input_ids_cpu, self.next_prompt_ids
        self.merge(running)
        self.mode = ForwardMode.MIXED
        self.prefill_input_ids_cpu = staged
        self.mix_running_indices = running.req_pool_indices
        self.out_cache_loc = slots
        self.extend_seq_lens, self.extend_prefix_lens = lens, prefixes
        self.mixed_lens_cpu = lens_cpu
        self.next_prompt_ids = (*next_ids, *(-1 for _ in running.requests))

    def _mixed_lens(
        self, running: ScheduleBatch
    ) -> tuple[tuple[int, ...], tuple[int, ...], None] | tuple[Tensor, Tensor, tuple[int, ...]]:
        """Say how many tokens each request brings, and how many it has before them.

        Where prefixes are known only on the device, both come as device tensors, and the lengths on
        the host as well.
        """
        assert isinstance(self.extend_seq_lens, tuple), "prompts are cut on the host"
        assert isinstance(self.extend_prefix_lens, tuple), "prompts are cut on the host"
        lens = (*self.extend_seq_lens, *(1 for _ in running.requests))
        if running.seq_lens_cpu is not None:
            before = [length - 1 for length in running.seq_lens_cpu.tolist()]
            return lens, (*self.extend_prefix_lens, *before), None
        prompts = self.memory.staging.upload((self.extend_seq_lens, self.extend_prefix_lens))
        ones = torch.ones_like(running.seq_lens)
        mixed = torch.cat((prompts, torch.stack((ones, running.seq_lens - 1))), dim=1)
        device_lens, device_before = mixed.unbind()
        return device_lens, device_before, lens

    def filter(self, keep: Sequence[int]) -> None:
        """Keep only these requests, by their places in the batch."""
        if len(keep) == len(self.requests):
            return
        kept = self.memory.staging.upload((keep,))[0]
        kept_cpu = _host(keep)
        self.requests = tuple(self.requests[place] for place in keep)
        self.generations = tuple(self.generations[place] for place in keep)
        self.samples = tuple(self.samples[place] for place in keep)
        self.req_pool_indices = self.req_pool_indices[kept]
        self.req_pool_indices_cpu = self.req_pool_indices_cpu[kept_cpu]
        self.seq_lens = self.seq_lens[kept]
        self.seq_lens_cpu = None if self.seq_lens_cpu is None else self.seq_lens_cpu[kept_cpu]
        bound = self.seq_lens_cpu_upper_bound
        self.seq_lens_cpu_upper_bound = None if bound is None else bound[kept_cpu]
        self._forget_the_step()

    def merge(self, other: ScheduleBatch) -> None:
        """Append another batch's requests; where either has no mirror, neither has the result."""
        self.requests = (*self.requests, *other.requests)
        self.generations = (*self.generations, *other.generations)
        self.samples = (*self.samples, *other.samples)
        self.req_pool_indices = torch.cat((self.req_pool_indices, other.req_pool_indices))
        self.req_pool_indices_cpu = torch.cat(
            (self.req_pool_indices_cpu, other.req_pool_indices_cpu)
        )
        self.seq_lens = torch.cat((self.seq_lens, other.seq_lens))
        bound = _both(self.upper_bound, other.upper_bound)
        self.seq_lens_cpu = _both(self.seq_lens_cpu, other.seq_lens_cpu)
        self.seq_lens_cpu_upper_bound = bound if self.seq_lens_cpu is None else None
        self._forget_the_step()

    def copy(self) -> ScheduleBatch:
        """Return what a step keeps of this batch, whatever becomes of it."""
        return replace(self)

    @property
    def mirror(self) -> Tensor:
        """[B] int64, host: the lengths, where the scheduler needs them and always has them."""
        assert self.seq_lens_cpu is not None, "outside speculative decode the mirror is kept"
        return self.seq_lens_cpu

    @property
    def upper_bound(self) -> Tensor | None:
        """[B] int64, host: never below `seq_lens`; the mirror is the tightest bound there is."""
        bound = self.seq_lens_cpu_upper_bound
        return self.seq_lens_cpu if bound is None else bound

    def _forget_the_step(self) -> None:
        """Drop what was of the last step alone."""
        self.seq_lens_sum = self.spec_info = None
        self.next_prompt_ids = ()
        self.input_ids = self.prefill_input_ids_cpu = self.mix_running_indices = None
        self.input_ids_pending = False
        self.out_cache_loc = self.extend_seq_lens = self.extend_prefix_lens = None
        self.mixed_lens_cpu = None


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else torch.cat((one, other))


def _plus_one(lengths_cpu: Tensor | None) -> Tensor | None:
    return None if lengths_cpu is None else lengths_cpu + 1


def _host(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)
