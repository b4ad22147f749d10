"""What an engine does when a step fails, when it is closed, and with what is not its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backend_caps import AttentionArch, Plan
from backend_caps.relay import DEVICE_TRAITS, DeviceStreams
from backend_caps.runtime import (
    Engine,
    EngineClosedError,
    EngineError,
    EngineFailedError,
    EngineOptions,
    ForwardBatch,
    Sampling,
    UnfitBackendError,
)
from backend_caps.runtime.model.random_models import random_llama
from backend_caps.runtime.stats import StepStats
from backend_caps.simulator import register, simulate
from backend_caps.startup.errors import StartupError
from tests.cases import axis
from tests.kit.liars.bases import Padded
from tests.runtime.engines import LOOPS, leaks, make_engine, plan_of

ENDLESS = Sampling(max_new_tokens=6, stop_token_ids=frozenset())
PROMPTS = ((1, 2, 3, 4, 5, 6), (7, 8, 9))
SMALL = EngineOptions(max_running_requests=2, max_total_tokens=64)


class Trips:
    """An observer that raises at one step."""

    def __init__(self, at: int, error: BaseException) -> None:
        self._left = at
        self._error = error

    def observe(self, stats: StepStats) -> None:  # noqa: ARG002 - the contract's
        """Raise when it is time."""
        self._left -= 1
        if not self._left:
            raise self._error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the smallest model that attends."""
    register()
    path = tmp_path_factory.mktemp("llama")
    random_llama(
        path,
        vocab_size=64,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        max_position_embeddings=64,
    )
    return path


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_engine_whose_step_failed_runs_no_other(
    folder: Path, loop: tuple[str, ...], error: BaseException
) -> None:
    """Half a step cannot be undone, so the engine says so instead of making wrong tokens."""
    engine = make_engine(folder, *loop, options=SMALL, observer=Trips(2, error))

    with pytest.raises(type(error)):
        engine.generate(PROMPTS, sampling=ENDLESS)

    with pytest.raises(EngineFailedError, match="a step of this engine failed"):
        engine.step()
    with pytest.raises(EngineFailedError, match="a step of this engine failed"):
        engine.submit(PROMPTS[0], ENDLESS)


def test_interrupted_generate_gives_its_requests_up(folder: Path) -> None:
    """Whatever ends `generate` early, its requests keep no row and no page."""
    engine = make_engine(folder, options=SMALL, observer=Trips(2, KeyboardInterrupt()))

    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, sampling=ENDLESS)

    assert leaks(engine) == (0, 0)


def test_closed_engine_runs_no_step(folder: Path) -> None:
    """After its `with` block an engine refuses requests and steps."""
    with make_engine(folder) as engine:
        engine.generate(PROMPTS, sampling=ENDLESS)

    with pytest.raises(EngineClosedError, match="this engine was closed"):
        engine.submit(PROMPTS[0], ENDLESS)
    with pytest.raises(EngineClosedError, match="this engine was closed"):
        engine.step()


class Device:
    """Whom the host asks to wait; a lost one refuses."""

    def __init__(self) -> None:
        self.is_lost = False

    def synchronize(self, _device: object) -> None:
        """Wait for nothing: this device is the host."""
        if self.is_lost:
            raise RuntimeError("the device is lost")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Device:
    """What the engines wait for that are made from now on."""
    own = Device()
    monkeypatch.setattr(torch.cpu, "synchronize", own.synchronize)
    return own


def test_device_that_failed_is_reported_once(folder: Path, host: Device) -> None:
    """Behind a step's error that of a device which went with it is no news."""
    engine = make_engine(folder, options=SMALL, observer=Trips(1, RuntimeError("illegal")))
    host.is_lost = True

    with pytest.raises(RuntimeError, match="illegal"), engine:
        engine.generate(PROMPTS, sampling=ENDLESS)


def test_device_that_fails_at_the_end_is_reported(folder: Path, host: Device) -> None:
    """Where no step has failed, what `close` meets is news."""
    engine = make_engine(folder)
    host.is_lost = True

    with pytest.raises(RuntimeError, match="the device is lost"):
        engine.close()


@pytest.mark.parametrize("schedule", ["lazy", "starve:1", "starve:2"])
def test_engine_that_is_deleted_waits_for_its_step(folder: Path, schedule: str) -> None:
    """What a step under way reads is not given to others while it runs."""
    with simulate(schedule, check_races=True) as simulation:
        engine = make_engine(folder, device="sim", options=SMALL)
        engine.submit(PROMPTS[0], ENDLESS)
        for _ in range(3):
            engine.step()

        del engine
        untouched = bool((torch.ones(65, 1, 8, device="sim") == 1).all().cpu())

    assert (untouched, simulation.races) == (True, ())


def test_engine_that_outlives_its_simulation_waits_in_no_other(folder: Path) -> None:
    """An engine may die while garbage is collected: its work is neither drained nor reported."""
    with simulate("lazy"):
        engine = make_engine(folder, device="sim", options=SMALL)
        engine.submit(PROMPTS[0], ENDLESS)
        engine.step()

    with simulate("lazy") as simulation:
        torch.ones(4, device="sim")
        before = simulation.counts
        del engine

        assert simulation.counts == before


@axis("schedule", ["lazy", "starve:1", "random:3"])
@axis("loop", LOOPS)
def test_tokens_are_right_without_pinned_memory(
    folder: Path, schedule: str, loop: tuple[str, ...]
) -> None:
    """On a device with streams and no pinned memory the host reads tokens when they are there."""
    traits = replace(DEVICE_TRAITS["sim"], has_pinned_memory=False)
    plan = plan_of("--attention-backend", "torch_padded", *loop)
    on_cpu = Engine.from_plan(folder, plan, "cpu", options=SMALL)
    expected = on_cpu.generate(PROMPTS, sampling=ENDLESS)

    with simulate(schedule):
        streams = DeviceStreams("sim", traits)
        engine = Engine.from_plan(folder, plan, "sim", options=SMALL, streams=streams)
        tokens = engine.generate(PROMPTS, sampling=ENDLESS)

    assert tokens == expected


def test_nothing_to_stage_is_not_pinned(folder: Path) -> None:
    """Memory of no bytes is pinned nowhere, and asked for nowhere."""
    with simulate("lazy"):
        empty = make_engine(folder, device="sim", options=SMALL).streams.empty_pinned(0)

    assert (tuple(empty.shape), empty.is_pinned()) == ((0,), False)


def test_request_of_another_engine_is_refused(folder: Path) -> None:
    """Rows of one engine mean nothing in another."""
    one, other = make_engine(folder), make_engine(folder)
    request = one.submit(PROMPTS[0], ENDLESS)

    with pytest.raises(EngineError, match="request 1 is none of this engine's"):
        other.abort(request)


def test_context_beyond_the_model_is_refused(folder: Path) -> None:
    """Positions that the model was not made for make no sense."""
    with pytest.raises(EngineError, match="--context-length is 65; at most the model's 64 was"):
        make_engine(folder, "--context-length", "65")


def test_backend_that_does_not_take_the_dtype_is_refused(folder: Path) -> None:
    """What the plan could not know yet is checked once the model is there."""
    options = EngineOptions(dtype=torch.bfloat16)
    plan = plan_of("--attention-backend", "torch_native", "--kv-cache-dtype", "float32")
    Engine.from_plan(folder, plan, "cpu", options=options)
    narrow = _changed(plan, dtypes=frozenset({"float32"}))

    told = "takes dtype float32; here it is bfloat16. Use another backend, or dtype float32."
    with pytest.raises(UnfitBackendError, match=told):
        Engine.from_plan(folder, narrow, "cpu", options=options)


def test_backend_of_another_family_of_attention_is_refused(folder: Path) -> None:
    """The models of this engine have multi-head attention, which the plan need not know."""
    latent = _changed(
        plan_of("--attention-backend", "torch_native"), attention_arch={AttentionArch.MLA}
    )

    with pytest.raises(UnfitBackendError, match="takes attention_arch mla; here it is mha"):
        Engine.from_plan(folder, latent, "cpu")


def test_device_that_is_not_here_is_refused(folder: Path) -> None:
    """A device that torch does not have is named before anything is loaded."""
    with pytest.raises(StartupError, match="'cuda:99'"):
        make_engine(folder, device="cuda:99")


class WrongShape(Padded):
    """A backend that forgets to flatten its heads."""

    def after(self, batch: ForwardBatch, output: Tensor) -> Tensor:
        """Leave the heads apart."""
        del batch
        return output.view(len(output), 2, -1)


def test_output_of_another_shape_is_refused(folder: Path) -> None:
    """A wrong shape is named where it comes from, and not where a weight does not fit."""
    plan = _changed(
        plan_of("--attention-backend", "torch_padded"), implementation=f"{__name__}:WrongShape"
    )
    engine = Engine.from_plan(folder, plan, "cpu", options=SMALL)

    with pytest.raises(EngineError, match=r"WrongShape\.forward returned shape"):
        engine.generate(PROMPTS, sampling=ENDLESS)


def _changed(plan: Plan, implementation: str | None = None, **changes: object) -> Plan:
    """Change what the plan's backends declare of themselves."""
    uses = []
    for use in plan.uses:
        assert use.declaration is not None, "an installed backend was read"
        capabilities = use.declaration.capabilities.model_copy(update=changes)
        code = implementation or use.declaration.implementation
        own = {"capabilities": capabilities, "implementation": code}
        uses.append(replace(use, declaration=use.declaration.model_copy(update=own)))
    return replace(plan, uses=tuple(uses))
