"""Stories: sequences of batches over the same pools, as an engine runs them in one backend.

Requests arrive with a prompt, grow by the accepted tokens of a step, change their order, and end;
the next request gets their row and pages at once. Slots without an owner hold poison.

Shapes: N entries of the page table or slots of the KV cache, B requests and T tokens in a batch, C
tokens of a request's context, Hq query heads, Hk key and value heads, D and Dv their sizes, K beams
of a draft step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from backend_caps.capability.kind import Phase
from backend_caps.kit import Forward, Scenario, Subject, scenarios, scenes


@dataclass(slots=True, eq=False)
class CachedRequest:
    """A request with a row and pages in the pools."""

    row: int
    """Its row of the page table."""
    pages: list[int] = field(default_factory=list)
    """Its pages of the KV cache."""
    length: int = 0
    """C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUpdate:
    """The writes of an engine to the pools before a forward."""

    entries: Tensor
    """[3, N] int64, host: rows and positions of the page table, and their slots."""
    slots: Tensor
    """[N] int64, host: slots of the KV cache that change without a forward."""
    keys: Tensor
    """[N, Hk, D], host: new keys of the slots; poison where a slot lost its owner."""
    values: Tensor
    """[N, Hk, Dv], host: new values of the slots, likewise."""


class HostCache:
    """Allocates rows and pages to requests, and keeps the expected contents of the pools.

    Rows and pages are reused last in, first out, so a new request meets what the last one left.

    Args:
        setting: the sizes of the pools.
        dice: shuffles the initial free rows and pages.
    """

    def __init__(self, setting: scenes.Setting, dice: random.Random) -> None:
        self._setting, self._pools = setting, setting.empty_pools()
        pages = range(1, setting.num_slots // setting.page_size)
        self._free_rows = dice.sample(range(1, setting.num_rows), setting.num_rows - 1)
        self._free_pages = dice.sample(pages, len(pages))
        self._entered: set[tuple[int, int]] = set()
        self._changed: set[int] = set()

    def pools(self) -> scenes.Pools:
        """Copy the present pools."""
        return scenes.moved(self._pools, torch.Tensor.clone)

    def admit(self) -> CachedRequest:
        """Admit a request: give it a row."""
        return CachedRequest(self._free_rows.pop())

    def release(self, request: CachedRequest) -> None:
        """Free a request's row and pages, and poison its slots."""
        self.shorten(request, 0)
        self._free_rows.append(request.row)
        self._free_pages += request.pages

    def grow(self, request: CachedRequest, count: int) -> Tensor:
        """Append tokens to a context, with new pages where needed; return their slots, [N]."""
        size, table = self._setting.page_size, self._pools.req_to_token
        start, request.length = request.length, request.length + count
        while len(request.pages) * size < request.length:
            position = len(request.pages) * size
            request.pages.append(self._free_pages.pop())
            slots = torch.arange(size) + request.pages[-1] * size
            width = min(size, table.shape[1] - position)
            table[request.row, position : position + width] = slots[:width].to(table.dtype)
            self._entered |= {(request.row, position + place) for place in range(width)}
        return self.slots(request)[start:]

    def shorten(self, request: CachedRequest, length: int) -> None:
        """Drop a context's last tokens: it keeps its pages, and the dropped slots are poison."""
        slots, request.length = self.slots(request)[length:], length
        self._pools.fill(slots, self._setting.poison)
        self._changed |= set(slots.tolist())

    def slots(self, request: CachedRequest) -> Tensor:
        """Return the slots of a context's tokens: [C] int64, host."""
        return self._pools.req_to_token[request.row, : request.length].long()

    def store(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store a forward's tokens: [N], [N, Hk, D] and [N, Hk, Dv]."""
        self._pools.store(slots, keys, values)

    def place(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store tokens that no forward of the story writes."""
        self.store(slots, keys, values)
        self._changed |= set(slots.tolist())

    def context(self, request: CachedRequest) -> tuple[Tensor, Tensor]:
        """Copy keys [C, Hk, D] and values [C, Hk, Dv] of a request's tokens."""
        return self._pools.tokens(self.slots(request))

    def take_update(self) -> PoolUpdate:
        """Return the changes since the last call that no forward made."""
        pools, entered = self._pools, torch.tensor(sorted(self._entered), dtype=torch.int64)
        rows, positions = entered.view(-1, 2).unbind(1)
        slots = torch.tensor(sorted(self._changed), dtype=torch.int64)
        self._entered, self._changed = set(), set()
        entries = torch.stack([rows, positions, pools.req_to_token[rows, positions].long()])
        keys, values = pools.tokens(slots)
        return PoolUpdate(entries=entries, slots=slots, keys=keys, values=values)


_NUM_STEPS = 3
"""Steps of a story; each has one or two turns, and one more where new requests are prefilled."""
_LONGEST_CHUNK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One forward of a story."""

    forward: Forward
    """The kind of forward."""
    scene: scenes.Scene
    """Its batch, and the expected pools before it; on the host."""
    update: PoolUpdate
    """The writes to the pools before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A sequence of forwards over the same pools."""

    pools: scenes.Pools
    """The pools before the first turn; on the host."""
    turns: Sequence[Turn]


def story_of(subject: Subject, scenario: Scenario, seed: int) -> Story:
    """Draw a story whose steps run a scenario's forward.

    Prompts are prefilled where the backend supports that; else they are placed in the cache.
    """
    prefills = Forward.PREFILL in scenarios.forwards_of(subject)
    writer = _StoryWriter(scenario, seed, prefills=prefills)
    pools = writer.cache.pools()
    return Story(pools=pools, turns=[turn for _ in range(_NUM_STEPS) for turn in writer.step()])


class _StoryWriter:
    """Draws a story step by step."""

    def __init__(self, scenario: Scenario, seed: int, *, prefills: bool) -> None:
        self._scenario, self._prefills = scenario, prefills
        self._dice = scenarios.dice_for(scenario, seed)
        # Two batches in a row may have the same lengths, and other rows.
        num_groups = self._dice.choice((1, 2))
        most = scenario.max_requests // num_groups
        self._most = self._dice.choice((1, min(2, most), most))
        self._groups = [list[CachedRequest]() for _ in range(num_groups)]
        self._setting = scenario.setting(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.cache = HostCache(self._setting, self._dice)

    def step(self) -> Iterator[Turn]:
        """End some requests and admit others, then run forwards of each group.

        Requests at the same place of two groups come and go together, and have the same lengths.
        """
        for place in reversed(range(len(self._groups[0]))):
            if self._ends(self._groups[0][place]):
                for group in self._groups:
                    self.cache.release(group.pop(place))
        num_running = len(self._groups[0])
        missing = self._most - num_running
        # At least one request runs, and not always the most.
        num_new = self._dice.randint(min(missing, 0 if num_running else 1), missing)
        prompts = [self._prompt_length() for _ in range(num_new)]
        order = self._dice.sample(range(num_running + num_new), num_running + num_new)
        for place, group in enumerate(self._groups):
            fresh = [self.cache.admit() for _ in prompts]
            if fresh:
                yield from self._admitted(fresh, prompts)
            joined = [*group, *fresh]
            self._groups[place] = [joined[at] for at in order]
        if self._scenario.forward is not Forward.PREFILL:
            yield from self._forwards()

    def _admitted(self, fresh: Sequence[CachedRequest], prompts: Sequence[int]) -> Iterator[Turn]:
        """Run the prompts of new requests, or place their tokens in the cache."""
        if self._prefills:
            yield self._turn(Forward.PREFILL, fresh, prompts)
            return
        for request, length in zip(fresh, prompts, strict=True):
            self.cache.place(self.cache.grow(request, length), *self._keys_and_values(length))

    def _ends(self, request: CachedRequest) -> bool:
        """Return whether a request ends: without room, after a lone prefill, or by chance."""
        is_full = request.length + self._room > self._scenario.max_context_len
        is_done = self._scenario.forward is Forward.PREFILL
        return is_full or is_done or self._dice.random() < 0.3  # noqa: PLR2004 - some do

    @property
    def _room(self) -> int:
        """Tokens that a step may append to a context."""
        drafted = scenarios.DRAFT_STEPS * self._scenario.topk
        return max(
            _LONGEST_CHUNK, self._scenario.num_nodes, self._scenario.new_tokens or 0, drafted
        )

    def _prompt_length(self) -> int:
        """Draw a length with room for a step behind it, often right before the end of a page."""
        most, size = self._scenario.max_context_len - self._room, self._scenario.page_size
        edges = [edge for edge in (size - 2, size - 1, size) if 1 <= edge <= most]
        return self._dice.choice([*edges, self._dice.randint(1, most)])

    def _forwards(self) -> Iterator[Turn]:
        """Run the step's forward of each group, then drop rejected tokens of each request."""
        starts = [request.length for request in self._groups[0]]
        counts = [*map(self._count, range(len(starts)))]
        for group in self._groups:
            yield from self._forwards_of(group, counts)
        for place, before in enumerate(starts):
            num_accepted = self._num_accepted(self._groups[0][place].length - before)
            for group in self._groups:
                self.cache.shorten(group[place], before + num_accepted)

    def _forwards_of(
        self, requests: Sequence[CachedRequest], counts: Sequence[int]
    ) -> Iterator[Turn]:
        """Run a forward of requests; of draft steps several in a row."""
        scenario, starts = self._scenario, [request.length for request in requests]
        if scenario.forward is Forward.DRAFT:
            for step in range(1, scenarios.DRAFT_STEPS + 1):
                masks = (scenes.beams(scenario.topk, step, self._dice) for _ in requests)
                visible = [*map(scenes.after_prefix, starts, masks)]
                yield self._turn(Forward.DRAFT, requests, [scenario.topk] * len(requests), visible)
        elif scenario.forward is Forward.TREE:
            count = scenario.num_nodes
            trees = (scenes.random_tree(count, scenario.topk, self._dice) for _ in requests)
            visible = [*map(scenes.after_prefix, starts, map(scenes.visible_nodes, trees))]
            yield self._turn(Forward.TREE, requests, [count] * len(requests), visible)
        else:
            yield self._turn(scenario.forward, requests, counts)

    def _count(self, place: int) -> int:
        """Draw the number of a request's new tokens in a forward without a tree."""
        match self._scenario.forward:
            case Forward.MIXED if place % 2:
                return 1
            case Forward.CHUNK | Forward.MIXED:
                most = self._scenario.new_tokens or _LONGEST_CHUNK
                return most if place == 0 else self._dice.randint(1, most)
            case _:
                return self._scenario.count

    def _num_accepted(self, count: int) -> int:
        """Draw the number of accepted tokens: one of a tree or of beams."""
        if self._scenario.forward.phase is Phase.PREFILL:
            return count
        return 1 if self._scenario.forward.is_tree else self._dice.randint(1, count)

    def _turn(
        self,
        forward: Forward,
        requests: Sequence[CachedRequest],
        counts: Sequence[int],
        visible: Sequence[Tensor] | None = None,
    ) -> Turn:
        """Run a forward with `counts` new tokens of each request, on the host."""
        cache, starts = self.cache, [request.length for request in requests]
        slots = torch.cat([cache.grow(*pair) for pair in zip(requests, counts, strict=True)])
        update, pools = cache.take_update(), cache.pools()
        keys, values = self._keys_and_values(sum(counts))
        cache.store(slots, keys, values)
        sizes = [*zip(starts, counts, strict=True)]
        rows = torch.tensor([request.row for request in requests], dtype=torch.int64)
        batch = scenes.batch_of(
            sizes,
            rows,
            slots,
            uniform=forward.phase is not Phase.PREFILL,
            extend_dtype=self._setting.extend_dtype,
        )
        drawn = scenes.Scene(
            pools=pools,
            layers=self._setting.layers,
            layout=self._setting.layout,
            batch=replace(batch, mode=forward.mode),
            q=self._setting.queries(sum(counts), self._generator),
            k=keys,
            v=values,
            contexts=[cache.context(request) for request in requests],
            visible=[scenes.causal(new, old + new) for old, new in sizes],
        )
        drawn = drawn if visible is None else scenes.with_mask(drawn, visible)
        return Turn(forward=forward, scene=drawn, update=update)

    def _keys_and_values(self, count: int) -> tuple[Tensor, Tensor]:
        return self._setting.keys_and_values(count, self._generator)
