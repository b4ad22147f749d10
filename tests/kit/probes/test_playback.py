from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from backend_caps import HostSeqLens, Role
from backend_caps.kit import Forward, Rig, Scenario, supplied
from backend_caps.kit.probes.playback import FORWARD, SCHEDULE, Player, SteadyRun
from backend_caps.kit.probes.stories import HostCache, Story, story_of
from backend_caps.kit.scenarios import dice_for, scenarios_of
from backend_caps.kit.scenes import reference_attention
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.liars.bases import Padded
from tests.kit.made import HONEST, SCENARIO, claiming
from tests.kit.specimen import subject_of

STORY = story_of(HONEST, Scenario(forward=Forward.MIXED), 1)


def _outputs(schedule: str, *, overlapped: bool, device: str = "sim") -> list[torch.Tensor]:
    rig = Rig(subject=HONEST, device=device)
    with rig.running(schedule):
        return list(Player(rig, STORY, overlapped=overlapped).outputs())


@pytest.mark.parametrize("device", ["sim", "cpu"])
@pytest.mark.parametrize("overlapped", [False, True])
def test_played_turns_are_their_baselines(device: str, *, overlapped: bool) -> None:
    """Each turn of an honest backend gives what it gives alone, on each device."""
    rig = Rig(subject=HONEST, device=device)
    expected = [rig.baseline(turn.scene) for turn in STORY.turns]

    found = _outputs("eager", overlapped=overlapped, device=device)

    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, expected, strict=True))


def test_turn_by_turn_is_the_whole() -> None:
    """A result may be read behind each turn."""
    rig = Rig(subject=HONEST)
    with rig.running():
        player = Player(rig, STORY, supply=partial(supplied, level=HostSeqLens.EXACT))
        found = [player.output(turn) for turn in STORY.turns]

    expected = _outputs("eager", overlapped=False)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_overlapped_host_waits_at_the_end_alone() -> None:
    """Building a step and launching it waits for nothing: each result is read once, at the end."""
    rig = Rig(subject=HONEST)
    with rig.running("lazy") as simulation:
        assert simulation is not None
        player = Player(rig, STORY, overlapped=True)
        before = simulation.counts
        player.outputs()
        played = simulation.counts - before

    assert played.num_hidden_syncs == len(STORY.turns)
    assert played.num_host_waits == len(STORY.turns) + 1


def test_streams_have_their_numbers() -> None:
    """Orders name the streams that they starve by number, so those are fixed."""
    rig = Rig(subject=HONEST)
    with rig.running() as simulation:
        assert simulation is not None
        Player(rig, STORY, overlapped=True)
        streams = sorted(simulation.engine.queues)

    assert streams == [0, SCHEDULE, FORWARD]


@pytest.mark.parametrize("schedule", ["lazy", "starve:1", "starve:2", "random:5"])
def test_own_lines_do_not_race(schedule: str) -> None:
    """With an honest backend no order brings a race about, nor another output."""
    rig = Rig(subject=HONEST)
    with rig.running(schedule, check_races=True) as simulation:
        found = Player(rig, STORY, overlapped=True).outputs()

    assert simulation is not None
    assert simulation.races == ()
    expected = _outputs("eager", overlapped=False)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


SEEN: list[ForwardBatch] = []


class Noting(Padded):
    """Notes every batch."""

    def seen(self, batch: ForwardBatch) -> ForwardBatch:
        """Note it."""
        SEEN.append(batch)
        return batch


class Remembering(Padded):
    """Remembers every output."""

    outputs: ClassVar[list[Tensor]] = []

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Remember it."""
        del batch
        self.outputs.append(output)
        return output


def _noted(num_steps: int, scenario: Scenario = SCENARIO, *, settle: bool = False) -> list[str]:
    """Run some steps, and say of each batch its mode, rows and lengths."""
    SEEN.clear()
    rig = Rig(subject=subject_of(Noting), device="cpu")
    with rig.running():
        run = SteadyRun(rig, scenario, 0)
        run.run(num_steps)
        if settle:
            SEEN.clear()
            run.settle()
    return [
        f"{batch.mode.value} {batch.req_pool_indices.tolist()} {batch.seq_lens.tolist()}"
        for batch in SEEN
    ]


def test_a_round_has_every_shape() -> None:
    """Each forward, batch size and longest context comes once before any comes again."""
    rig = Rig(subject=HONEST, device="cpu")
    with rig.running():
        shapes = SteadyRun(rig, SCENARIO, 0).shapes
    _noted(len(shapes))

    found = {(own.mode, own.batch_size, int(own.seq_lens.max())) for own in SEEN}
    assert len(found) == len(shapes) == 48


def test_steps_of_a_seed_are_the_same() -> None:
    """A run can be repeated."""
    assert _noted(9) == _noted(9)


def test_batches_of_a_round_differ_from_those_of_the_next() -> None:
    """No two batches of several requests have the same lengths in the same rows for long."""
    assert len(set(_noted(192))) > 140


def test_settling_is_the_same_behind_any_steps() -> None:
    """What is measured is measured behind the same batches."""
    assert _noted(3, settle=True) == _noted(50, settle=True)


@pytest.mark.parametrize("page_size", [1, 16])
def test_slots_of_new_tokens_are_their_rows(page_size: int) -> None:
    """New tokens go where the page table has the ends of their contexts, never to page 0."""
    _noted(48, Scenario(forward=Forward.DECODE, page_size=page_size))

    slots = torch.cat([own.out_cache_loc for own in SEEN])
    assert int(slots.min()) >= page_size
    assert all(len({*own.out_cache_loc.tolist()}) == own.num_tokens for own in SEEN)


@pytest.mark.parametrize("device", ["sim", "cpu"])
def test_outputs_are_finite(device: str) -> None:
    """Whatever a step attends to is there."""
    rig, outputs = Rig(subject=subject_of(Remembering), device=device), Remembering.outputs
    outputs.clear()
    with rig.running():
        SteadyRun(rig, SCENARIO, 1).run(12)
        are_finite = [bool(own.isfinite().all()) for own in outputs]

    assert are_finite == [True] * 12


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
    """What a request loses is reported, with poison for it, and its slots come again."""
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
