from __future__ import annotations

from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from backend_caps import HostSeqLens
from backend_caps.kit import Forward, Rig, Scenario, supplied
from backend_caps.kit.probes.playback import FORWARD, SCHEDULE, Player, SteadyRun
from backend_caps.kit.probes.stories import story_of
from backend_caps.runtime.forward_batch import ForwardBatch
from tests.kit.liars.bases import Padded
from tests.kit.made import HONEST, SCENARIO
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
    noted = _noted(192)

    assert len(set(noted)) > 140


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
