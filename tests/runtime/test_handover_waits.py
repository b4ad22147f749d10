"""What a prompt that was taken over makes host and streams wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend_caps import HostSeqLens
from backend_caps.runtime import Engine, Handover, Sampling
from backend_caps.simulator import Counts, Simulation, WaitKind, register, simulate
from tests.runtime.handovers import PROMPTS, Way, hand_over_all, make_engine, write_models

NONE, UPPER_BOUND, EXACT = HostSeqLens
ENDLESS = Sampling(max_new_tokens=30, stop_token_ids=frozenset())
WAYS = (
    Way(),
    Way(algorithm="EAGLE", topk=2),
    Way(algorithm="EAGLE", level=UPPER_BOUND),
    Way(algorithm="STANDALONE", topk=2, level=UPPER_BOUND),
)
in_every_way = pytest.mark.parametrize("way", WAYS, ids=str)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models of every engine here."""
    register()
    return write_models(tmp_path_factory.mktemp("waits"))


@contextmanager
def _decoding(models: Path, way: Way) -> Iterator[tuple[Simulation, Engine, list[Handover]]]:
    """Make a decode engine on the simulated device that has a request, and others to come."""
    handovers = hand_over_all(models, way, PROMPTS[:4], ENDLESS)
    with simulate("lazy") as simulation:
        engine = make_engine(models, way, "decode", device="sim")
        engine.take_over(handovers.pop())
        engine.step()
        engine.step()
        yield simulation, engine, handovers


def _spent(models: Path, way: Way) -> tuple[int, Counts]:
    """Take prompts over, a step each; return how many, and what these steps took."""
    with _decoding(models, way) as (simulation, engine, handovers):
        before = simulation.counts
        for own in handovers:
            engine.take_over(own)
            engine.step()
        return len(handovers), simulation.counts - before


@in_every_way
def test_steps_that_take_prompts_over_wait_for_tokens_alone(models: Path, way: Way) -> None:
    """Each waits once, for the result of the step before, as steps do that take nothing over."""
    num_steps, spent = _spent(models, way)

    assert spent.num_host_waits == spent.num_waits_of(WaitKind.EVENT) == num_steps
    assert spent.num_copies_to_host == num_steps


def test_exact_mirror_waits_no_more_for_a_prompt_taken_over(models: Path) -> None:
    """One wait a step for lengths, on the relay's own stream, as ever."""
    num_steps, spent = _spent(models, Way(algorithm="EAGLE", level=EXACT))

    assert spent.num_waits_of(WaitKind.STREAM) == num_steps
    assert spent.num_host_waits == 2 * num_steps


def test_states_that_cross_are_counted(models: Path) -> None:
    """What a step says that it brings to the device has the prompts taken over in it."""
    with _decoding(models, WAYS[1]) as (simulation, engine, handovers):
        before, staged = simulation.counts, engine.resources.staging.num_bytes

        for own in handovers:
            engine.take_over(own)
        engine.step()
        spent = simulation.counts - before

    assert engine.resources.staging.num_bytes - staged == spent.bytes_to_device


def test_prompts_are_handed_over_without_a_wait_but_for_their_own(models: Path) -> None:
    """Beside steps' results, the host waits once for each prompt: for its copy."""
    with simulate("lazy") as simulation:
        engine = make_engine(models, Way(), "prefill", device="sim")
        before = simulation.counts

        handovers = list(engine.hand_over(PROMPTS[:3], ENDLESS))
        spent = simulation.counts - before

    assert len(handovers) == 3
    assert spent.num_host_waits == spent.num_waits_of(WaitKind.EVENT) == 3 + 1
