from __future__ import annotations

from functools import partial

import pytest
import torch

from backend_caps import HostSeqLens
from backend_caps.kit import Forward, Rig, Scenario, supplied
from backend_caps.kit.workloads.playing import FORWARD, SCHEDULE, Player
from backend_caps.kit.workloads.sequences import story_of
from tests.kit.made import HONEST

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
