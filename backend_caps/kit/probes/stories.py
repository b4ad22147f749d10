"""Stories: batch after batch over the same pools, as an engine brings them to one backend.

Requests come with a prompt, grow by what a step accepts, change their order, and leave; the next
request gets their row and pages at once. Slots without an owner hold poison.

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
    """A request, from when it comes until it leaves."""

    row: int
    """Of the page table."""
    pages: list[int] = field(default_factory=list)
    """Of the KV cache."""
    length: int = 0
    """C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUpdate:
    """What an engine writes to the pools in front of a forward."""

    entries: Tensor
    """[3, N] int64, host: rows and positions of the page table, and the slots that go there."""
    slots: Tensor
    """[N] int64, host: what changes in the KV cache without a forward."""
    keys: Tensor
    """[N, Hk, D], host: poison where a slot lost its owner."""
    values: Tensor
    """[N, Hk, Dv], host: the same."""


class HostCache:
    """Rows and pages of requests, and the pools as they are in plain order.

    Args:
        setting: how large the pools are.
        dice: in which order rows and pages are given out at first. The last one that came back is
            the first one that goes out.
    """

    def __init__(self, setting: scenes.Setting, dice: random.Random) -> None:
        self._setting, self._pools = setting, setting.empty_pools()
        pages = range(1, setting.num_slots // setting.page_size)
        self._free_rows = dice.sample(range(1, setting.num_rows), setting.num_rows - 1)
        self._free_pages = dice.sample(pages, len(pages))
        self._entered: set[tuple[int, int]] = set()
        self._changed: set[int] = set()

    def pools(self) -> scenes.Pools:
        """Copy the pools as they are now."""
        return scenes.moved(self._pools, torch.Tensor.clone)

    def come(self) -> CachedRequest:
        """Give a request a row."""
        return CachedRequest(self._free_rows.pop())

    def leave(self, stay: CachedRequest) -> None:
        """Take a request's row and pages back, and let its tokens be poison."""
        self.shorten(stay, 0)
        self._free_rows.append(stay.row)
        self._free_pages += stay.pages

    def grow(self, stay: CachedRequest, count: int) -> Tensor:
        """Append tokens to a context, and enter the pages that it needs: their slots, [N]."""
        size, table = self._setting.page_size, self._pools.req_to_token
        start, stay.length = stay.length, stay.length + count
        while len(stay.pages) * size < stay.length:
            position = len(stay.pages) * size
            stay.pages.append(self._free_pages.pop())
            slots = torch.arange(size) + stay.pages[-1] * size
            width = min(size, table.shape[1] - position)
            table[stay.row, position : position + width] = slots[:width].int()
            self._entered |= {(stay.row, position + place) for place in range(width)}
        return self.slots(stay)[start:]

    def shorten(self, stay: CachedRequest, length: int) -> None:
        """Drop a context's last tokens: its pages stay, and their slots hold poison."""
        slots, stay.length = self.slots(stay)[length:], length
        self._pools.keys[slots] = self._pools.values[slots] = self._setting.poison
        self._changed |= set(slots.tolist())

    def slots(self, stay: CachedRequest) -> Tensor:
        """List the slots of a context's tokens: [C] int64, host."""
        return self._pools.req_to_token[stay.row, : stay.length].long()

    def store(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store what a forward writes: [N], [N, Hk, D] and [N, Hk, Dv]."""
        self._pools.set_kv_buffer(None, slots, keys, values)

    def place(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store what no forward of the story writes."""
        self.store(slots, keys, values)
        self._changed |= set(slots.tolist())

    def context(self, stay: CachedRequest) -> tuple[Tensor, Tensor]:
        """Copy keys [C, Hk, D] and values [C, Hk, Dv] of a request's tokens."""
        slots = self.slots(stay)
        return self._pools.keys[slots], self._pools.values[slots]

    def written(self) -> PoolUpdate:
        """Return what changed without a forward since the last call."""
        pools, entered = self._pools, torch.tensor(sorted(self._entered), dtype=torch.int64)
        rows, positions = entered.view(-1, 2).unbind(1)
        slots = torch.tensor(sorted(self._changed), dtype=torch.int64)
        self._entered, self._changed = set(), set()
        entries = torch.stack([rows, positions, pools.req_to_token[rows, positions].long()])
        keys, values = pools.keys[slots], pools.values[slots]
        return PoolUpdate(entries=entries, slots=slots, keys=keys, values=values)


_NUM_STEPS = 3
"""Steps of a story; each has a turn or two, and one more where requests come with a prefill."""
_LONGEST_CHUNK = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One forward of a story."""

    forward: Forward
    """What it is for."""
    scene: scenes.Scene
    """Its batch, and the pools as plain order has them in front of it; on the host."""
    written: PoolUpdate
    """What is written to the pools before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Forward after forward over the same pools."""

    pools: scenes.Pools
    """As they are before the first turn; on the host."""
    turns: Sequence[Turn]


def story_of(subject: Subject, scenario: Scenario, seed: int) -> Story:
    """Draw a story whose steps are a scenario's forward.

    Prompts come by prefills where the backend takes any; else they are in the cache from the start.
    """
    prefills = Forward.PREFILL in scenarios.forwards_of(subject)
    author = _StoryWriter(scenario, seed, prefills=prefills)
    beginning = author.cache.pools()
    return Story(pools=beginning, turns=[own for _ in range(_NUM_STEPS) for own in author.step()])


class _StoryWriter:
    """Write a story, step after step."""

    def __init__(self, scenario: Scenario, seed: int, *, prefills: bool) -> None:
        self._scenario, self._prefills = scenario, prefills
        self._dice = scenarios.dice_for(scenario, seed)
        self._most = self._dice.choice((1, 2, scenarios.MOST_REQUESTS))
        self._stays: list[CachedRequest] = []
        self._setting = scenario.setting(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.cache = HostCache(self._setting, self._dice)

    def step(self) -> Iterator[Turn]:
        """Let requests leave and come, then run forwards of the present ones."""
        for stay in [own for own in self._stays if self._leaves(own)]:
            self._stays.remove(stay)
            self.cache.leave(stay)
        missing = self._most - len(self._stays)
        # At least one is there, and not always as many as may be.
        num_comers = self._dice.randint(min(missing, 0 if self._stays else 1), missing)
        fresh = [self.cache.come() for _ in range(num_comers)]
        self._stays += fresh
        self._dice.shuffle(self._stays)
        prompts = [self._prompt_length() for _ in fresh]
        if self._prefills and fresh:
            yield self._turn(Forward.PREFILL, fresh, prompts)
        else:
            for stay, length in zip(fresh, prompts, strict=True):
                self.cache.place(self.cache.grow(stay, length), *self._keys_and_values(length))
        if self._scenario.forward is not Forward.PREFILL:
            yield from self._forwards()

    def _leaves(self, stay: CachedRequest) -> bool:
        """Return whether a request leaves: it has no room, or its prefill was all there is."""
        is_full = stay.length + self._room > self._scenario.max_context_len
        is_done = self._scenario.forward is Forward.PREFILL
        return is_full or is_done or self._dice.random() < 0.3  # noqa: PLR2004 - some do

    @property
    def _room(self) -> int:
        """Tokens that a step may append to a context."""
        drafted = scenarios.DRAFT_STEPS * self._scenario.topk
        return max(_LONGEST_CHUNK, scenarios.TREE_NODES, drafted)

    def _prompt_length(self) -> int:
        """Draw a length that leaves room, often right before the end of a page."""
        most, size = self._scenario.max_context_len - self._room, self._scenario.page_size
        edges = [edge for edge in (size - 2, size - 1, size) if 1 <= edge <= most]
        return self._dice.choice([*edges, self._dice.randint(1, most)])

    def _forwards(self) -> Iterator[Turn]:
        """Run the step's forward, and keep of each request what is accepted."""
        scenario, stays = self._scenario, [*self._stays]
        starts = [stay.length for stay in stays]
        if scenario.forward is Forward.DRAFT:
            for step in range(1, scenarios.DRAFT_STEPS + 1):
                drawn = (scenes.beams(scenario.topk, step, self._dice) for _ in stays)
                seen = [*map(scenes.after_prefix, starts, drawn)]
                yield self._turn(Forward.DRAFT, stays, [scenario.topk] * len(stays), seen)
        elif scenario.forward is Forward.TREE:
            count = scenarios.TREE_NODES
            trees = (scenes.random_tree(count, scenario.topk, self._dice) for _ in stays)
            seen = [*map(scenes.after_prefix, starts, map(scenes.visible_nodes, trees))]
            yield self._turn(Forward.TREE, stays, [count] * len(stays), seen)
        else:
            yield self._turn(scenario.forward, stays, [*map(self._count, range(len(stays)))])
        for stay, before in zip(stays, starts, strict=True):
            self.cache.shorten(stay, before + self._num_accepted(stay.length - before))

    def _count(self, place: int) -> int:
        """Draw the tokens that a request brings to a forward without a tree."""
        match self._scenario.forward:
            case Forward.DECODE:
                return 1
            case Forward.MIXED if place % 2:
                return 1
            case Forward.CHUNK | Forward.MIXED:
                return self._dice.randint(1, _LONGEST_CHUNK)
            case _:
                return scenarios.VERIFIED

    def _num_accepted(self, count: int) -> int:
        """Draw how many tokens stay: of a tree the root, of drafts the first beam."""
        if self._scenario.forward.phase is Phase.PREFILL:
            return count
        return 1 if self._scenario.forward.is_tree else self._dice.randint(1, count)

    def _turn(
        self,
        forward: Forward,
        stays: Sequence[CachedRequest],
        counts: Sequence[int],
        visible: Sequence[Tensor] | None = None,
    ) -> Turn:
        """Run a forward that brings so many tokens of each request, on the host."""
        cache, starts = self.cache, [stay.length for stay in stays]
        slots = torch.cat([cache.grow(*pair) for pair in zip(stays, counts, strict=True)])
        written, pools = cache.written(), cache.pools()
        keys, values = self._keys_and_values(sum(counts))
        cache.store(slots, keys, values)
        requests = [*zip(starts, counts, strict=True)]
        rows = torch.tensor([stay.row for stay in stays], dtype=torch.int64)
        batch = scenes.batch_of(requests, rows, slots, uniform=forward.phase is not Phase.PREFILL)
        made = scenes.Scene(
            pools=pools,
            layer=self._setting.layer,
            batch=replace(batch, mode=forward.mode),
            q=self._setting.queries(sum(counts), self._generator),
            k=keys,
            v=values,
            contexts=[cache.context(stay) for stay in stays],
            visible=[scenes.causal(new, old + new) for old, new in requests],
        )
        made = made if visible is None else scenes.with_mask(made, visible)
        return Turn(forward=forward, scene=made, written=written)

    def _keys_and_values(self, count: int) -> tuple[Tensor, Tensor]:
        return self._setting.keys_and_values(count, self._generator)
