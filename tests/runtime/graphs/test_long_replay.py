"""One capture and hundreds of replays, of which no two have anything in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from torch_native_caps import TORCH_PADDED

from backend_caps import BatchKind, HostSeqLens, Phase, Plan, ServerFlags, resolve
from backend_caps.relay import DeviceStreams
from backend_caps.resolution.rules import RuleSet
from backend_caps.runtime.engine import Engine
from backend_caps.runtime.options import EngineOptions
from backend_caps.simulator import simulate
from backend_caps.simulator.errors import CaptureError
from backend_caps.startup.graph_modes import GraphMode
from tests.runtime.engines import run
from tests.runtime.graphs.baked import (
    AskedInGraph,
    BakedBatchSize,
    BakedLength,
    BakedPrefix,
    BakedSlots,
)
from tests.runtime.graphs.piece_rig import PieceRig, difference, drawn_step
from tests.runtime.graphs.rig import BUCKETS, SIMULATED, Rig, native, uses_of
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle

pytestmark = pytest.mark.no_cover  # run by other tests too

NUM_STEPS = 500
NUM_JOBS = 12
SINGLE = BatchKind.SINGLE_TOKEN_DECODE
every_baked = pytest.mark.parametrize(
    "baked",
    [
        pytest.param(BakedLength, id="a length"),
        pytest.param(BakedPrefix, id="a sum of lengths"),
        pytest.param(BakedBatchSize, id="a batch size"),
        pytest.param(BakedSlots, id="an address of slots"),
    ],
)
Baked = type[BakedLength | BakedPrefix | BakedBatchSize | BakedSlots | AskedInGraph]


def wrong_steps(rig: Rig, num_steps: int, kinds: Sequence[BatchKind]) -> list[int]:
    """List the steps, of each kind in turn, whose scores are not those of an eager forward."""
    return [
        seed
        for seed in range(num_steps)
        if difference(rig, drawn_step(rig, kinds[seed % len(kinds)], seed)) > 1e-4
    ]


def test_replays_of_one_capture_are_eager_ones(streams: DeviceStreams) -> None:
    """Lengths, page tables and batches change in every step, and the scores are the eager ones."""
    rig = Rig(streams, [bucket for buckets in BUCKETS.values() for bucket in buckets])

    assert wrong_steps(rig, NUM_STEPS, list(BatchKind)) == []


def test_pieces_of_one_capture_are_eager_ones(streams: DeviceStreams) -> None:
    """So are those in pieces, with a backend that slices by host lengths."""
    rig = PieceRig(streams, build=native)

    assert wrong_steps(rig, NUM_STEPS, list(BatchKind)) == []


@every_baked
def test_replay_of_a_baked_value_shows(baked: Baked, streams: DeviceStreams) -> None:
    """Steps like these give a backend away that keeps a host value of its capture."""
    rig = Rig(streams, BUCKETS[SINGLE], build=baked, host_seq_lens=HostSeqLens.EXACT)

    assert len(wrong_steps(rig, 20, [SINGLE])) > 10


@every_baked
def test_pieces_bake_nothing(baked: Baked, streams: DeviceStreams) -> None:
    """The same backends are right in pieces: no graph has anything of them."""
    rig = PieceRig(streams, build=baked)

    assert wrong_steps(rig, 20, [SINGLE]) == []


def test_capture_that_asks_the_device_is_refused() -> None:
    """A backend that waits for a device value to bake it in is named by the capture."""
    with simulate("lazy"):
        streams = DeviceStreams("sim", SIMULATED)

        with pytest.raises(CaptureError, match=r"baked\.py"):
            Rig(streams, BUCKETS[SINGLE], build=AskedInGraph)


def plan_of(baked: Baked, *argv: str) -> Plan:
    """Resolve a server whose backend declares that its captures may be replayed."""
    implementation = f"{baked.__module__}:{baked.__name__}"
    reads = TORCH_PADDED.capabilities.model_copy(update={"host_seq_lens": HostSeqLens.EXACT})
    changes = {"implementation": implementation, "capabilities": reads}
    declaration = TORCH_PADDED.model_copy(update=changes)
    flags = ServerFlags.from_argv(["--attention-backend", "baked", *argv])
    return resolve(
        uses_of("baked", declaration, [Phase.PREFILL, Phase.DECODE]),
        flags,
        rules=RuleSet.builtin("sglang-0.5.13"),
    )


def tokens_of(folder: Path, plan: Plan, oracle: Oracle) -> tuple[list[list[int]], set[GraphMode]]:
    """Run an engine on the simulated device: its tokens, and how its decodes ran."""
    kept, options = Kept(), EngineOptions(graph_batch_sizes=(4,), graph_token_counts=(128,))
    with simulate("lazy"):
        engine = Engine.from_plan(folder, plan, "sim", options=options, observer=kept)
        tokens = run(engine, oracle.jobs[:NUM_JOBS])
    return tokens, {step.graph_mode for step in kept.steps if step.mode.value == "decode"}


@every_baked
@pytest.mark.parametrize(
    ("flag", "mode", "is_right"),
    [
        pytest.param("--disable-piecewise-cuda-graph", GraphMode.FULL, False, id="full"),
        pytest.param("--disable-cuda-graph", GraphMode.EAGER, True, id="eager"),
    ],
)
def test_engine_shows_what_a_backend_bakes(
    flag: str, mode: GraphMode, baked: Baked, oracle: Oracle, *, is_right: bool
) -> None:
    """In full graphs the tokens are not those of transformers, and eagerly they are."""
    tokens, modes = tokens_of(oracle.folder, plan_of(baked, flag), oracle)

    assert modes == {mode}
    assert (tokens == oracle.tokens[:NUM_JOBS]) is is_right
