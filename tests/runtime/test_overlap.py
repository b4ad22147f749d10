from pathlib import Path

import pytest

from backend_caps.runtime import Engine, EngineOptions, Sampling
from backend_caps.runtime.model import random_llama
from backend_caps.simulator import Simulation, register, simulate
from backend_caps.simulator.queues import Op
from backend_caps.simulator.streams import Stream
from tests.runtime.engines import plan_of

ENDLESS = Sampling(max_new_tokens=64, stop_token_ids=frozenset())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the smallest model that attends."""
    register()
    path = tmp_path_factory.mktemp("llama")
    random_llama(path, vocab_size=64, hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1)
    return path


def _decoding(folder: Path, *arguments: str) -> Engine:
    """Make an engine that is in the middle of its decode steps."""
    plan = plan_of("--context-length", "128", *arguments)
    engine = Engine.from_plan(folder, plan, "sim", options=EngineOptions(max_running_requests=4))
    for number in range(3):
        engine.submit([number + 1, 2, 3], ENDLESS)
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
        engine = _decoding(folder, "--attention-backend", backend)

        left = [(engine.step(), _num_left(simulation, engine))[1] for _ in range(6)]

    assert min(left) > 0


def test_plain_step_returns_after_the_forward_that_it_launched(folder: Path) -> None:
    """The plain loop has a step's tokens, so its forward has run."""
    with simulate("lazy") as simulation:
        engine = _decoding(
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
        engine = _decoding(folder, "--attention-backend", backend)
        simulation.host_waits.clear()
        simulation.hidden_syncs.clear()

        for _ in range(6):
            engine.step()
        waited = [sync.cause for sync in simulation.host_waits]
        hidden = list(map(str, simulation.hidden_syncs))

    assert (waited, hidden) == (["Event.synchronize"] * 6, [])
