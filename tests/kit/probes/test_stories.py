from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from backend_caps import Role
from backend_caps.kit import Forward, Scenario
from backend_caps.kit.probes.stories import HostCache, Story, story_of
from backend_caps.kit.scenarios import dice_for, scenarios_of
from backend_caps.kit.scenes import reference_attention
from tests.kit.made import HONEST, claiming

every_scenario = pytest.mark.parametrize(
    "scenario", [*scenarios_of(HONEST, list(Forward))], ids=lambda own: own.name
)
PAGED = Scenario(forward=Forward.DECODE, page_size=16)


def _cache() -> HostCache:
    return HostCache(PAGED.setting(0), dice_for(PAGED, 0))


def _rows(story: Story) -> list[set[int]]:
    return [set(turn.scene.batch.req_pool_indices.tolist()) for turn in story.turns]


@every_scenario
def test_turns_fit_the_pools(scenario: Scenario) -> None:
    """No context outgrows the page table, and each token has a slot of its own."""
    turns = [turn for seed in range(4) for turn in story_of(HONEST, scenario, seed).turns]

    for turn in turns:
        batch = turn.scene.batch
        assert int(batch.seq_lens.max()) <= scenario.max_context_len
        assert len({*batch.out_cache_loc.tolist()}) == batch.num_tokens
        assert int(batch.out_cache_loc.min()) >= scenario.page_size


@every_scenario
def test_pools_hold_the_contexts(scenario: Scenario) -> None:
    """In front of a turn the cache has what is cached of each request."""
    for turn in story_of(HONEST, scenario, 1).turns:
        scene, rows = turn.scene, turn.scene.batch.req_pool_indices
        for row, (keys, _), new in zip(rows, scene.contexts, scene.counts, strict=True):
            cached = len(keys) - new

            slots = scene.pools.req_to_token[row, :cached].long()

            assert torch.equal(scene.pools.keys[slots], keys[:cached])


@every_scenario
def test_what_nobody_owns_is_poison(scenario: Scenario) -> None:
    """In front of a turn its tokens' slots are poison, and so is the padding's page."""
    for turn in story_of(HONEST, scenario, 1).turns:
        keys, size = turn.scene.pools.keys, scenario.page_size

        assert keys[turn.scene.batch.out_cache_loc].isnan().all()
        assert keys[:size].isnan().all()


@every_scenario
def test_reference_of_a_turn_is_finite(scenario: Scenario) -> None:
    """What a turn says of itself is enough for the definition of attention."""
    outputs = [reference_attention(turn.scene) for turn in story_of(HONEST, scenario, 2).turns]

    assert all(own.isfinite().all() for own in outputs)


def test_same_seed_is_the_same_story() -> None:
    """A name and a seed are enough to have it again."""
    one, other = (story_of(HONEST, PAGED, 3) for _ in range(2))

    assert _rows(one) == _rows(other)
    assert all(
        torch.equal(a.scene.q, b.scene.q) for a, b in zip(one.turns, other.turns, strict=True)
    )


def test_requests_come_and_leave() -> None:
    """Over some stories batches lose requests and get others."""
    pairs = [
        pair
        for seed in range(8)
        for rows in [_rows(story_of(HONEST, PAGED, seed))]
        for pair in pairwise(rows)
    ]

    assert any(before - after for before, after in pairs)
    assert any(after - before for before, after in pairs)


def test_prompts_come_by_prefills_where_they_are_taken() -> None:
    """Who takes no prefills finds its prompts in the cache."""
    drafting = claiming(roles={Role.DRAFT_EXTEND})
    scenario = Scenario(forward=Forward.DRAFT_EXTEND)

    forwards = [
        {turn.forward for turn in story_of(own, scenario, 0).turns} for own in (HONEST, drafting)
    ]

    assert forwards == [{Forward.PREFILL, Forward.DRAFT_EXTEND}, {Forward.DRAFT_EXTEND}]


def test_pages_come_when_they_are_needed() -> None:
    """A page is entered whole where its first token comes, and not again."""
    cache = _cache()
    request = cache.admit()

    entered = []
    for count in (15, 1, 1):
        cache.grow(request, count)
        entered.append(cache.take_update().entries.shape[1])

    assert entered == [16, 0, 16]


def test_forgotten_tokens_are_poison() -> None:
    """What a request loses is told, with poison for it, and its slots come again."""
    cache = _cache()
    request = cache.admit()
    slots = cache.grow(request, 3)
    keys = torch.ones(3, 2, 16)
    cache.place(slots, keys, keys)
    cache.take_update()

    cache.shorten(request, 1)

    written = cache.take_update()
    assert written.slots.tolist() == sorted(slots[1:].tolist())
    assert written.keys.isnan().all()
    assert torch.equal(cache.grow(request, 2), slots[1:])


def test_who_comes_next_gets_what_was_left() -> None:
    """A row and a page that come back go out at once."""
    cache = _cache()
    request = cache.admit()
    cache.grow(request, 1)
    cache.release(request)

    after = cache.admit()
    cache.grow(after, 1)

    assert (after.row, after.pages) == (request.row, request.pages)
