"""The waiting line: admission of prompts, in chunks, and retraction when the KV cache is full.

All of it is host work on host numbers.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from operator import attrgetter

from backend_caps.runtime.chunk_sizes import ChunkSizes
from backend_caps.runtime.memory import RequestMemory, num_pages_of
from backend_caps.runtime.options import EngineOptions
from backend_caps.runtime.request import Request


class WaitingLine:
    """Requests that have no row, or not all of their prompt in the KV cache.

    At most one request is cut in the middle of its prompt, the one that is first in line.

    Args:
        memory: rows and pages.
        options: the most prompt tokens of a step, and whether prompts are cut.
        num_slots_behind: slots behind a stretch of a prompt that its step writes to as well.
    """

    def __init__(self, memory: RequestMemory, options: EngineOptions, num_behind: int = 0) -> None:
        self.memory = memory
        self.num_slots_behind = num_behind
        """Slots behind a stretch of a prompt that its step writes to as well."""
        self._line: deque[Request] = deque()
        self._cut: Request | None = None
        self.chunk_sizes: ChunkSizes | None = None
        """Cuts prompts further than `chunked_prefill_size`, by where they stand."""
        self._is_cutting = options.chunked_prefill_size is not None
        most = options.max_prefill_tokens
        self._budget = min(options.chunked_prefill_size or most, most)

    def __len__(self) -> int:
        """Count the requests that wait."""
        return len(self._line) + (self._cut is not None)

    def __iter__(self) -> Iterator[Request]:
        """List the requests that wait, the first in line first."""
        return iter((*(() if self._cut is None else (self._cut,)), *self._line))

    def add(self, request: Request) -> None:
        """Put a request at the end of the line, or where it stood before it was retracted."""
        insort(self._line, request, key=attrgetter("number"))

    def admit(self, num_kept: int) -> dict[Request, int]:
        """Choose how much of which prompts the next step runs, and give the requests rows.

        A prompt is begun only where all of it fits now, and the first step behind it: one that is
        given up half run, or before it has made a token more, was run in vain.

        Args:
            num_kept: pages that are left for the requests that run, so that an admission is not
                paid for by a retraction in the same step.
        """
        budget = self._budget
        free = self.memory.pages.num_free - num_kept
        stretches: dict[Request, int] = {}
        while budget > 0 and (request := self._first()) is not None and request.states is None:
            count = self._stretch_of(request, budget)
            if stretches and count > budget:
                break
            pages = self._pages_for(request, count)
            if pages > free or not self._enter(request):
                break
            # A plain step takes a page at most, and a request without room for it can wait for one.
            behind = 0 if self.memory.rows.lookahead else 1
            free, budget = free - pages - behind, budget - count
            stretches[request] = count
            self._cut = request if count < request.num_left_to_prefill else None
            if self._cut is not None:
                break
        return stretches

    def admit_arrived(self, num_kept: int) -> list[Request]:
        """Choose the requests that go on at once, as their prompts ran elsewhere, and give rows.

        They come in their turn. There is room for the first step of each.

        Args:
            num_kept: pages that are left for the requests that run.
        """
        free = self.memory.pages.num_free - num_kept
        arrived: list[Request] = []
        while (request := self._first()) is not None and request.states is not None:
            pages = self._pages_to_begin(len(request.prompt), 1)
            if pages > free or not self._enter(request):
                break
            free -= pages
            arrived.append(request)
        return arrived

    def give_up_cut(self) -> Request | None:
        """Take the half-run prompt out of the KV cache, back to the line, where there is one."""
        request, self._cut = self._cut, None
        if request is not None:
            self.retract(request)
        return request

    def retract(self, request: Request) -> None:
        """Take a request out of the KV cache, back to the line."""
        self.memory.release(request.row)
        request.leave()
        request.num_retractions += 1
        self.add(request)

    def drop(self, request: Request) -> None:
        """Take a request out of the line, where it is in it; its row stays its own."""
        if request is self._cut:
            self._cut = None
        elif not request.row:
            self._line.remove(request)

    def _stretch_of(self, request: Request, budget: int) -> int:
        """Count the tokens of a prompt that the step gets."""
        count = request.num_left_to_prefill if request is self._cut else _length(request)
        if not self._is_cutting:
            return count
        if self.chunk_sizes is not None:
            count = min(count, self.chunk_sizes.chunk_size(request))
        return min(count, budget)

    def _first(self) -> Request | None:
        return self._cut if self._cut is not None else (self._line[0] if self._line else None)

    def _enter(self, request: Request) -> bool:
        if request is self._cut:
            return True
        if not self.memory.rows.num_free:
            return False
        request.enter(*self.memory.rows.alloc())
        self._line.popleft()
        return True

    def _pages_for(self, request: Request, num_tokens: int) -> int:
        """Count the pages to be free: for the stretch where it goes on, else for the prompt."""
        if request is self._cut:
            end = request.num_prefilled + num_tokens + self.num_slots_behind
            return self.memory.pages_missing((request.row,), (end,))[0]
        return self._pages_to_begin(_length(request), self.num_slots_behind)

    def _pages_to_begin(self, num_tokens: int, num_behind: int) -> int:
        """Count the pages of so many tokens, and of what is written behind them in a first step."""
        reach = num_tokens + max(num_behind, self.memory.rows.lookahead)
        return num_pages_of(reach, self.memory.page_size)


def _length(request: Request) -> int:
    """Count the tokens that a stay would prefill."""
    return len(request.prompt) + len(request.output)


def choose_retractions(
    running: Sequence[Request], num_pages_missing: Sequence[int], memory: RequestMemory
) -> list[Request]:
    """Choose what to retract until the rest fits: the latest arrivals, and never the last request.

    Args:
        running: the requests that decode next.
        num_pages_missing: pages that each lacks for its next token.
        memory: rows and pages.
    """
    by_arrival = sorted(zip(running, num_pages_missing, strict=True), key=lambda own: own[0].number)
    free = memory.pages.num_free
    missing = sum(num_pages_missing)
    chosen: list[Request] = []
    while missing > free and len(by_arrival) > 1:
        request, own_missing = by_arrival.pop()
        missing -= own_missing
        free += memory.num_pages(request.row)
        chosen.append(request)
    return chosen
