"""Pools, requests and batches that the tests of the runtime's parts start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DeviceStreams, FutureMap
from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.memory import PagePool, ReqToTokenPool, RequestMemory
from backend_caps.runtime.request import Request, Sampling
from backend_caps.runtime.staging import Staging

MAX_CONTEXT_LEN = 64


def make_rows(max_requests: int = 8, *, page_size: int = 1) -> ReqToTokenPool:
    """Make a request pool on the CPU."""
    return ReqToTokenPool(
        max_requests=max_requests,
        max_context_len=MAX_CONTEXT_LEN,
        page_size=page_size,
        device=torch.device("cpu"),
    )


def make_memory(
    device: torch.device | str = "cpu",
    *,
    page_size: int = 1,
    num_tokens: int = 512,
    max_requests: int = 8,
) -> RequestMemory:
    """Make rows and pages."""
    staging = Staging(DeviceStreams(device))
    rows = ReqToTokenPool(
        max_requests=max_requests,
        max_context_len=MAX_CONTEXT_LEN,
        page_size=page_size,
        device=staging.streams.device,
    )
    return RequestMemory(rows, PagePool(num_tokens // page_size), staging)


def make_relay(memory: RequestMemory, *, speculative: bool = False) -> FutureMap:
    """Make a relay of 16 rows that brings no length to the host."""
    return FutureMap(
        pool_size=16,
        device=memory.staging.streams.device,
        host_seq_lens=HostSeqLens.NONE,
        speculative=speculative,
    )


def make_request(
    number: int = 1, prompt: Sequence[int] = (5, 6, 7), max_new_tokens: int = 8
) -> Request:
    """Make a request that waits; token 2 stops it."""
    return Request(
        number=number,
        prompt=tuple(prompt),
        sampling=Sampling(max_new_tokens=max_new_tokens),
        stop_token_ids=frozenset({2}),
    )


def enter(memory: RequestMemory, *requests: Request) -> None:
    """Give requests rows."""
    for request in requests:
        request.enter(*memory.rows.alloc())


def make_batch(memory: RequestMemory, *lengths: int, first: int = 1) -> ScheduleBatch:
    """Make a batch of requests with prompts of these lengths, which run whole."""
    requests = [
        make_request(number, prompt=[number] * length)
        for number, length in enumerate(lengths, first)
    ]
    enter(memory, *requests)
    return ScheduleBatch.prepare_for_extend(requests, lengths, memory)


def table_of(memory: RequestMemory, row: int) -> list[int]:
    """List the slots that the page table has for a row."""
    num_slots = memory.num_pages(row) * memory.page_size
    slots: list[int] = memory.rows.req_to_token[row, :num_slots].tolist()
    return slots


def pages_of(memory: RequestMemory, row: int) -> list[int]:
    """List the pages that a row has, by its slots in the page table."""
    return [slot // memory.page_size for slot in table_of(memory, row)[:: memory.page_size]]


def values_of(batch: ScheduleBatch) -> dict[str, object]:
    """Write a batch's fields down, tensors as lists."""
    pairs = [(each.name, getattr(batch, each.name)) for each in fields(batch)]
    return {name: own.tolist() if isinstance(own, Tensor) else own for name, own in pairs}
