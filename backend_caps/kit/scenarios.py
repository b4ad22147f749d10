"""The kinds of batches: a forward of the engine, with the sizes of model and cache."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby, product
from operator import attrgetter
from typing import Self, TypeVar

import torch
from torch import Tensor

from backend_caps.capability.facts import includes
from backend_caps.capability.kind import ANY, Phase, Role
from backend_caps.capability.sets import pages_of
from backend_caps.capability.vocabulary import BatchKind
from backend_caps.kit import scenes
from backend_caps.kit.subject import Subject
from backend_caps.runtime.batch import ForwardMode

_T = TypeVar("_T", int, str)
VERIFIED = 3
"""Tokens of each request in a verified chain, unless a scenario says otherwise."""
TREE_NODES = 5
"""Tokens of each request in a verified tree, likewise."""
CHUNKED = 9
"""New tokens of a request's longest chunk, likewise."""
DRAFT_STEPS = 2
"""Draft steps whose beams a draft forward attends to."""
MOST_REQUESTS = 4
"""Requests of the largest batch, likewise."""
_SHORT = 24
"""The longest context of a scenario that does not test long contexts."""
_WIDEST = 3
"""Children of a node, and beams of a draft step, unless a backend claims fewer."""
_FLATTER = 0.75
"""Factor of the usual scaling, so that a backend that ignores `layer.scaling` fails."""
_FLATTER_BY = 0.8
"""Factor of a layer's scaling on that of the layer before, so that one kept for all fails."""
_NARROW_VALUES = {192: 128, 576: 512}
"""Sizes of values by those of queries and keys, in models with latent attention."""
_BEHIND_CHUNK = 8
"""Room in a context for cached tokens in front of the longest chunk."""


_BLOCKS = (32, 64, 128, 256, 512)
"""Tokens of the blocks that kernels go through."""
_MANY_BLOCKS = 500
"""Tokens of a scenario's contexts from which on lengths are often at the edge of such a block."""


class Forward(Enum):
    """A kind of forward of the engine."""

    _value_: str
    mode: ForwardMode
    """The mode of its batch."""
    role: Role
    """The role of the backend that runs it."""

    def __new__(cls, word: str, mode: ForwardMode, role: Role = Role.TARGET) -> Self:
        """Make a forward whose value is its word."""
        forward = object.__new__(cls)
        forward._value_, forward.mode, forward.role = word, mode, role
        return forward

    PREFILL = "prefill", ForwardMode.EXTEND
    """Whole prompts."""
    CHUNK = "chunk", ForwardMode.EXTEND
    """Chunks of prompts, over their cached tokens."""
    MIXED = "mixed", ForwardMode.MIXED
    """Chunks of prompts, with decode rows behind them."""
    DECODE = "decode", ForwardMode.DECODE
    """One token of each request."""
    VERIFY = "verify", ForwardMode.VERIFY
    """A chain of drafts for each request."""
    TREE = "tree", ForwardMode.VERIFY
    """A tree of drafts for each request."""
    DRAFT = "draft", ForwardMode.DECODE, Role.DRAFT
    """The beams of a draft step, for each request."""
    DRAFT_EXTEND = "draft-extend", ForwardMode.DRAFT_EXTEND, Role.DRAFT_EXTEND
    """The accepted tokens of each request, for the draft model."""

    @property
    def phase(self) -> Phase:
        """The phase of the backend that runs it."""
        return self.mode.phase

    @property
    def use(self) -> Mapping[str, Role | Phase]:
        """The role and phase of the backend that runs it, as facts of `Subject.claim`."""
        return {"role": self.role, "phase": self.phase}

    @property
    def batch_kind(self) -> BatchKind:
        """The batch kind of its graph."""
        if self.phase is Phase.PREFILL:
            return BatchKind.MIXED_BATCH
        is_single = self is Forward.DECODE
        return BatchKind.SINGLE_TOKEN_DECODE if is_single else BatchKind.UNIFORM_BATCH

    @property
    def is_tree(self) -> bool:
        """Whether a mask hides some earlier tokens from its tokens."""
        return self in {Forward.TREE, Forward.DRAFT}


CAUSAL = tuple(forward for forward in Forward if not forward.is_tree)
"""Forwards whose tokens each see all before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything of a batch but its requests, which a seed draws."""

    forward: Forward
    page_size: int = 1
    dtype: str = "float32"
    head_size: int = 16
    num_heads: int = 4
    """Query heads."""
    num_kv_heads: int = 2
    topk: int = _WIDEST
    """Children of a node, and beams of a draft step."""
    min_context_len: int = _SHORT
    """A lower bound of the longest context."""
    new_tokens: int | None = None
    """Tokens of each request in a verify, tree or draft-extend, and of the longest chunk; None:
    `VERIFIED`, `TREE_NODES` or `CHUNKED`."""
    max_requests: int = MOST_REQUESTS
    """Requests of the largest batch."""
    layer_ids: tuple[int, ...] = (0,)
    """The layers that run; the KV cache has all layers up to the last one."""
    numbers: scenes.Numbers = scenes.Numbers.USUAL
    """How large scores and values are."""
    layout: scenes.Layout = scenes.Layout.PACKED
    """How queries, keys and values stand in memory."""
    index_dtype: str = "int32"
    """The dtype of the page table; extend lengths have the other one of int32 and int64."""
    is_shared: bool = False
    """Whether requests share their first tokens, and the KV cache has no room for them apart."""

    @property
    def name(self) -> str:
        """One word that identifies it in a case's name."""
        sizes = f"page-{self.page_size},head-{self.head_size}x{self.num_heads}:{self.num_kv_heads}"
        words = {
            f"topk-{self.topk}": self.forward.is_tree,
            f"context-{self.min_context_len}": self.min_context_len != _SHORT,
            f"new-{self.new_tokens}": self.new_tokens is not None,
            f"requests-{self.max_requests}": self.max_requests != MOST_REQUESTS,
            f"layers-{'+'.join(map(str, self.layer_ids))}": self.layer_ids != (0,),
            self.numbers.value: self.numbers is not scenes.Numbers.USUAL,
            self.layout.value: self.layout is not scenes.Layout.PACKED,
            self.index_dtype: self.index_dtype != "int32",
            "shared": self.is_shared,
        }
        parts = (self.forward.value, self.dtype, sizes)
        return ",".join([*parts, *(word for word, is_said in words.items() if is_said)])

    @property
    def max_context_len(self) -> int:
        """The longest context: two pages and a few tokens, a chunk, or all beams or nodes."""
        beams = max(DRAFT_STEPS * self.topk, self.num_nodes) + VERIFIED
        chunk = (self.new_tokens or 0) + _BEHIND_CHUNK
        return max(self.min_context_len, 2 * self.page_size + 8, beams, chunk)

    @property
    def count(self) -> int:
        """Tokens of each request in a verify, tree or draft-extend, and of the longest chunk."""
        if self.forward is Forward.TREE:
            return self.num_nodes
        if self.forward in {Forward.CHUNK, Forward.MIXED}:
            return self.new_tokens or CHUNKED
        return 1 if self.forward is Forward.DECODE else self.new_tokens or VERIFIED

    @property
    def num_nodes(self) -> int:
        """Tokens of each request in a tree: a wide tree has a node with `topk` children."""
        return self.new_tokens or TREE_NODES if self.topk <= _WIDEST else self.topk + 2

    @property
    def value_size(self) -> int:
        """Dv: smaller than the head size where that is of latent attention."""
        return _NARROW_VALUES.get(self.head_size, self.head_size)

    @property
    def num_shared(self) -> int:
        """Tokens that all requests begin with: as many whole pages as leave room for new ones."""
        room = self.max_context_len - self.count - 1
        return room // self.page_size * self.page_size if self.is_shared else 0

    def setting(self, seed: int) -> scenes.Setting:
        """Return the sizes of a scene: room for the largest batch, on scattered pages."""
        shared_pages = self.num_shared // self.page_size
        pages_each = -(-self.max_context_len // self.page_size) - shared_pages
        layer, *later_layers = (
            scenes.layer_of(
                self.num_heads,
                self.num_kv_heads,
                self.head_size,
                self.value_size,
                scaling=_FLATTER * _FLATTER_BY**place * self.head_size**-0.5,
                layer_id=place,
            )
            for place in self.layer_ids
        )
        return scenes.Setting(
            layer=layer,
            later_layers=tuple(later_layers),
            numbers=self.numbers,
            layout=self.layout,
            index_dtype=getattr(torch, self.index_dtype),
            extend_dtype=torch.int64 if self.index_dtype == "int32" else torch.int32,
            dtype=getattr(torch, self.dtype),
            page_size=self.page_size,
            max_context_len=self.max_context_len,
            num_slots=(self.max_requests * pages_each + shared_pages + 3) * self.page_size,
            num_shared=self.num_shared,
            num_rows=self.max_requests + 3,
            seed=seed,
        )


def dice_for(scenario: Scenario, seed: int) -> random.Random:
    """Seed a generator with a scenario and a seed: the same draws on every machine."""
    # `Random` hashes a string by SHA-512; a seed by `hash` would differ between processes.
    return random.Random(f"{scenario.name}#{seed}")  # noqa: S311 - no secrets


def draw(scenario: Scenario, seed: int) -> scenes.Scene:
    """Draw a batch. Lengths are often at a page's edge.

    At seed 0 it has one request; where the scenario has more than usual, it has these.
    """
    most = scenario.max_requests
    few, many = (1, 3, most, 2), (most, most // 2 + 1, most - 1, most)
    count = (few if most == MOST_REQUESTS else many)[seed % 4]
    return draw_requests(scenario, dice_for(scenario, seed), count, setting_seed=seed)


def draw_requests(
    scenario: Scenario, dice: random.Random, count: int, *, setting_seed: int
) -> scenes.Scene:
    """Draw a batch of `count` requests."""
    setting = scenario.setting(setting_seed)
    if scenario.forward.is_tree:
        drafts = [_draft_request(scenario, dice, place) for place in range(count)]
        drawn = scenes.masked_scene(drafts, setting=setting)
    else:
        requests = [_request(scenario, dice, place) for place in range(count)]
        is_uniform = scenario.forward.phase is not Phase.PREFILL
        drawn = scenes.scene(requests, uniform=is_uniform, setting=setting)
    return replace(drawn, batch=replace(drawn.batch, mode=scenario.forward.mode))


def _draft_request(scenario: Scenario, dice: random.Random, place: int) -> tuple[int, Tensor]:
    """Draw a request's number of cached tokens, and the mask of its nodes or beams.

    Beams are those of the last draft step: each sees one beam of each step before.
    """
    is_tree = scenario.forward is Forward.TREE
    room = scenario.num_nodes if is_tree else DRAFT_STEPS * scenario.topk
    length = _cached(scenario, dice, room)
    if is_tree:
        return length, scenes.visible_nodes(_tree(scenario, dice, place))
    return length, scenes.beams(scenario.topk, DRAFT_STEPS, dice)


def _request(scenario: Scenario, dice: random.Random, place: int) -> tuple[int, int]:
    """Draw the numbers of cached and of new tokens of one request."""
    longest = scenario.max_context_len
    match scenario.forward:
        case Forward.PREFILL:
            return 0, _length(scenario, dice, 1, longest)
        case Forward.CHUNK:
            if scenario.new_tokens is not None and place == 0:
                new = scenario.new_tokens
                return _length(scenario, dice, 1, longest - new), new
            cached = _length(scenario, dice, 1, longest - 1)
            return cached, dice.randint(1, min(scenario.count, longest - cached))
        case Forward.MIXED:
            is_longest = scenario.new_tokens is not None and place == 0
            new = scenario.count if is_longest else dice.randint(1, scenario.count)
            new = 1 if place % 2 else new
            return _length(scenario, dice, 0, longest - new), new
        case _:
            return _cached(scenario, dice, scenario.count), scenario.count


def _cached(scenario: Scenario, dice: random.Random, new: int) -> int:
    """Draw a number of cached tokens; that, or the length with new ones, is often at an edge."""
    longest, least = scenario.max_context_len, scenario.num_shared
    if dice.random() < 0.5:  # noqa: PLR2004 - every other time
        return _length(scenario, dice, least + new, longest) - new
    return _length(scenario, dice, least, longest - new)


def _tree(scenario: Scenario, dice: random.Random, place: int) -> scenes.Tree:
    """Draw a tree; every other wide one has `topk` children at the root, and one below them."""
    if scenario.topk > _WIDEST and place % 2 == 0:
        return [0] * (scenario.topk + 1) + [scenario.topk]
    return scenes.random_tree(scenario.num_nodes, scenario.topk, dice)


def _length(scenario: Scenario, dice: random.Random, least: int, most: int) -> int:
    """Draw a length; every other one is at the edge of a page, of a block or of its range."""
    size = scenario.page_size
    edges = {least, most, size - 1, size, size + 1, 2 * size - 1, 2 * size}
    if scenario.min_context_len >= _MANY_BLOCKS:
        block = dice.choice(_BLOCKS)
        edge = dice.randint(1, max(1, most // block)) * block
        edges |= {edge - 1, edge, edge + 1}
    if dice.random() < 0.5:  # noqa: PLR2004 - every other time
        return dice.choice(sorted(edge for edge in edges if least <= edge <= most))
    return dice.randint(least, most)


def forwards_of(subject: Subject) -> tuple[Forward, ...]:
    """List the forwards that a backend supports, by its claimed roles and tree width."""
    return tuple(
        forward
        for forward in Forward
        if forward.role in roles_of(subject)
        and forward.value not in subject.without
        and (not forward.is_tree or topk_of(subject) > 1)
    )


def topk_of(subject: Subject) -> int:
    """Return the tree width that a backend claims to support."""
    return subject.claim_as(int, "max_speculative_topk")


def roles_of(subject: Subject) -> frozenset[Role]:
    """Return the roles that a backend claims to support."""
    return subject.claim_as(frozenset, "roles")


def scenarios_of(subject: Subject, forwards: Sequence[Forward]) -> Iterator[Scenario]:
    """List scenarios of each supported forward, at a small and at a larger page size."""
    supported = forwards_of(subject)
    for forward, page_size in product(forwards, page_sizes_of(subject)[:2]):
        if forward in supported:
            yield Scenario(
                forward=forward,
                page_size=page_size,
                dtype=dtypes_of(subject)[0],
                head_size=head_sizes_of(subject)[0],
                topk=min(_WIDEST, topk_of(subject)),
            )


def scenarios_by_forward(
    subject: Subject, forwards: Sequence[Forward]
) -> Sequence[Sequence[Scenario]]:
    """List the scenarios of `scenarios_of`, grouped by forward."""
    groups = groupby(scenarios_of(subject, forwards), attrgetter("forward"))
    return [list(scenarios) for _, scenarios in groups]


def page_sizes_of(subject: Subject) -> tuple[int, ...]:
    """List the claimed page sizes of those that servers use: the smallest, then a usual one.

    They are multiples of a kernel's block, where blocks are claimed.
    """
    sizes = (1, 16, 64, 32, 128, 4, 256)
    blocks = subject.declaration.capabilities.stated().get("kernel_block_sizes", ANY)
    split = tuple(size for size in sizes if includes(pages_of(blocks), size))
    return _claimed(subject, "page_sizes", split or sizes)


def head_sizes_of(subject: Subject) -> tuple[int, ...]:
    """List the claimed head sizes of those that models have; the first is small."""
    return _claimed(subject, "head_sizes", (16, 64, 128, 80, 192, 96, 256, 32, 576))


def dtypes_of(subject: Subject) -> tuple[str, ...]:
    """List the claimed dtypes, the most precise first."""
    return _claimed(subject, "dtypes", ("float32", "bfloat16", "float16"))


def _claimed(subject: Subject, capability: str, known: tuple[_T, ...]) -> tuple[_T, ...]:
    """List the known values that are claimed; where none is, the first known value."""
    stated = subject.declaration.capabilities.stated().get(capability)
    if stated is ANY:
        return known
    assert stated is None or isinstance(stated, Container), "what takes some values tells which"
    claimed = () if stated is None else tuple(value for value in known if value in stated)
    return claimed or known[:1]
