"""Waits of the host: in overlapped steps, and where prompts are handed over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend_caps import HostSeqLens
from backend_caps.runtime import Engine, EngineOptions, Handover, Sampling
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.simulator import Counts, Simulation, WaitKind, register, simulate
from backend_caps.simulator.queues import Op
from backend_caps.simulator.streams import Stream
from tests.runtime.engines import plan_of
from tests.runtime.handovers import PROMPTS, Way, hand_over_all, make_engine, write_models

LONGER = Sampling(max_new_tokens=64, stop_token_ids=frozenset())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the smallest model that attends."""
    register()
    path = tmp_path_factory.mktemp("llama")
    random_llama(path, vocab_size=64, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1)
    return path


def _decoding_engine(folder: Path, *arguments: str) -> Engine:
    """Make an engine that is in the middle of its decode steps."""
    plan = plan_of("--context-length", "128", *arguments)
    engine = Engine.from_plan(folder, plan, "sim", options=EngineOptions(max_running_requests=4))
    for number in range(3):
        engine.submit([number + 1, 2, 3], LONGER)
    for _ in range(4):
        engine.step()
    return engine


def _num_left(simulation: Simulation, engine: Engine) -> int:
    """Count the operators that the forward stream has left to run, the end of tensors aside."""
    forward = engine.step_streams.forward
    assert isinstance(forward, Stream)
    items = simulation.engine.queue(forward.handle).items
    return sum(isinstance(item, Op) and item.name != "free" for item in items)


@pytest.mark.parametrize("backend", ["torch_native", "torch_padded"])
def test_overlapped_step_returns_before_the_forward_that_it_launched(
    folder: Path, backend: str
) -> None:
    """On a device that does no work before it must, a decode step leaves its forward undone."""
    with simulate("lazy") as simulation:
        engine = _decoding_engine(folder, "--attention-backend", backend)

        left = [(engine.step(), _num_left(simulation, engine))[1] for _ in range(6)]

    assert min(left) > 0


def test_plain_step_returns_after_the_forward_that_it_launched(folder: Path) -> None:
    """The plain loop has a step's tokens, so its forward has run."""
    with simulate("lazy") as simulation:
        engine = _decoding_engine(
            folder, "--attention-backend", "torch_padded", "--disable-overlap-schedule"
        )

        left = [(engine.step(), _num_left(simulation, engine))[1] for _ in range(6)]

    assert max(left) == 0


@pytest.mark.parametrize("backend", ["torch_native", "torch_padded"])
def test_overlapped_decode_step_waits_once_and_for_nothing_hidden(
    folder: Path, backend: str
) -> None:
    """A decode step waits for the step before's tokens alone, and no operator of it waits."""
    with simulate("lazy") as simulation:
        engine = _decoding_engine(folder, "--attention-backend", backend)
        simulation.host_waits.clear()
        simulation.hidden_syncs.clear()

        for _ in range(6):
            engine.step()
        waited = [sync.cause for sync in simulation.host_waits]
        hidden = list(map(str, simulation.hidden_syncs))

    assert (waited, hidden) == (["Event.synchronize"] * 6, [])


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
