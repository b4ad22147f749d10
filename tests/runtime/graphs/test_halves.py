"""Captured batches in two halves, and the engine that replays graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend_caps import BatchKind, HostSeqLens
from backend_caps.relay import DeviceStreams
from backend_caps.runtime import Engine, EngineOptions, ForwardBatch, GraphMode
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.model.random_models import first_layers
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.simulator import simulate
from backend_caps.startup.graph_modes import Bucket, mixed_buckets, uniform_buckets
from tests.cases import axis
from tests.runtime.engines import PLAIN_LOOP, plan_of, run
from tests.runtime.graphs.rig import DRAFTS, MAX_CONTEXT_LEN, SIMULATED, Rig
from tests.runtime.graphs.spies import WatchedPadded
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle

SINGLE, UNIFORM, MIXED = BatchKind
SIZES = (1, 2, 5)
BUCKETS = {SINGLE: uniform_buckets(SIZES), UNIFORM: uniform_buckets(SIZES, DRAFTS)}
MASK_SIZE = max(SIZES) * DRAFTS * MAX_CONTEXT_LEN
LENGTHS = (4, 0, 21, 9, 2)
ORDERS = ["lazy", "starve:1", "starve:33"]


def _rig(kind: BatchKind, streams: DeviceStreams, **made: object) -> Rig:
    return Rig(streams, BUCKETS[kind], in_halves=True, **made)  # type: ignore[arg-type]


def _requests(kind: BatchKind, size: int) -> Sequence[tuple[int, int]]:
    return [(cached, 1 if kind is SINGLE else DRAFTS) for cached in LENGTHS[:size]]


def _trees(rig: Rig, size: int, *, in_halves: bool, in_place: bool = False) -> ForwardBatch:
    """Make a batch of trees without a mirror, its mask laid out as one or by halves."""
    batch = rig.tree_batch(LENGTHS[:size], seed=size, mirror=False)
    visible = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]] * size, dtype=torch.bool)
    buffers = rig.runner.mask_buffers(size) if in_place else (None,) * (1 + in_halves)
    with rig.streams.using(rig.stream):
        contexts = Contexts(
            req_to_token=rig.site.req_to_token_pool.req_to_token,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens - DRAFTS,
            seq_lens_cpu=None,
            upper_bound=None,
        )
        return contexts.forward(
            batch.mode,
            batch.input_ids.view(size, DRAFTS),
            batch.positions.view(size, DRAFTS),
            start=0,
            visible=visible.to(rig.streams.device),
            mask_buffers=buffers,
        )


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [SINGLE, UNIFORM], ids=["decode", "chains"])
def test_replay_in_halves_scores_as_an_eager_forward(kind: BatchKind, order: str) -> None:
    """Whatever its size, from one request up, a batch has the scores that it has whole."""
    with simulate(order):
        rig = _rig(kind, DeviceStreams("sim", SIMULATED))

        for size in (5, 1, 4, 2, 3):
            batch = rig.batch(_requests(kind, size), kind=kind, seed=size)
            eager = rig.eager(batch)
            torch.testing.assert_close(rig.replayed(batch), eager, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "apart"])
@pytest.mark.parametrize("order", ORDERS)
def test_replay_of_trees_in_halves_scores_as_an_eager_forward(
    order: str, *, in_place: bool
) -> None:
    """Each half reads its own mask, wherever it was made, and one request has the first half's."""
    with simulate(order):
        rig = _rig(UNIFORM, DeviceStreams("sim", SIMULATED), mask_size=MASK_SIZE)

        for size in (5, 1, 4, 2, 3):
            eager = rig.eager(_trees(rig, size, in_halves=False))
            batch = _trees(rig, size, in_halves=size > 1, in_place=in_place)
            torch.testing.assert_close(rig.replayed(batch), eager, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "first", "second"),
    [
        pytest.param(2, 1, 1, id="both halves full"),
        pytest.param(3, 1, 2, id="padding behind each half"),
        pytest.param(5, 2, 3, id="an odd number"),
    ],
)
def test_halves_of_a_graph_each_get_half_of_the_requests(
    size: int, first: int, second: int, streams: DeviceStreams
) -> None:
    """Padding stands behind each half's own requests, so no half has padding alone."""
    rig = _rig(SINGLE, streams, build=WatchedPadded)
    batch = rig.batch(_requests(SINGLE, size), kind=SINGLE)

    replayed = rig.replay(batch)

    backends = (rig.backend, rig.second)
    rows = [
        own.out_graph[-1].req_pool_indices for own in backends if isinstance(own, WatchedPadded)
    ]
    of_first, of_second = (rig.on_host(own).tolist() for own in rows)
    expected = rig.on_host(batch.req_pool_indices).tolist()
    assert of_first == expected[:first] + [0] * (len(of_first) - first)
    assert of_second == expected[first:] + [0] * (len(of_second) - second)
    assert replayed.in_halves


def test_absence_survives_a_replay_in_halves(streams: DeviceStreams) -> None:
    """Halves of a batch without a mirror have none, behind those of one that had."""
    rig = _rig(SINGLE, streams, build=WatchedPadded, host_seq_lens=HostSeqLens.NONE)
    assert isinstance(rig.second, WatchedPadded)
    batch = rig.batch(_requests(SINGLE, 3), kind=SINGLE)
    rig.replay(batch)
    mirror = rig.second.out_graph[-1].seq_lens_cpu
    assert mirror is not None
    batch.seq_lens_cpu = batch.seq_lens_sum = None

    rig.replay(batch)

    padded = rig.second.out_graph[-1]
    assert mirror.tolist() == [1, 22, 0]
    assert (padded.seq_lens_cpu, padded.seq_lens_sum) == (None, None)


@pytest.mark.parametrize(
    ("bucket", "expected"),
    [
        pytest.param(uniform_buckets((5,))[0], [(2, 2), (3, 3)], id="an odd number"),
        pytest.param(uniform_buckets((2,), 3)[0], [(1, 3), (1, 3)], id="verify"),
        pytest.param(uniform_buckets((1,))[0], None, id="one request"),
        pytest.param(mixed_buckets(4, (8,))[0], None, id="prompts"),
    ],
)
def test_bucket_is_halved_by_its_requests(
    bucket: Bucket, expected: list[tuple[int, int]] | None
) -> None:
    """A graph of n requests has a first half of n // 2; one request and prompts have none."""
    halves = bucket.halves

    sizes = None if halves is None else [(own.batch_size, own.num_tokens) for own in halves]
    assert sizes == expected


FULL, PIECEWISE, EAGER = GraphMode
NO_PIECES, ENFORCED = "--disable-piecewise-cuda-graph", "--enforce-piecewise-cuda-graph"
PADDED_DECODE = ("--decode-attention-backend", "torch_padded")
BACKENDS = ("torch_padded", "torch_native")
OPTIONS = EngineOptions(
    max_running_requests=6,
    chunked_prefill_size=48,
    graph_batch_sizes=(1, 3),
    graph_token_counts=(16, 48),
)


@axis("mixed", [(), ("--enable-mixed-chunk",)], ids=["apart", "mixed"])
@axis("schedule", ["lazy", "starve:2"])
def test_engine_replays_every_step(schedule: str, mixed: tuple[str, ...], oracle: Oracle) -> None:
    """Prefill, decode and mixed steps all run as graphs, and give the tokens of transformers."""
    plan = plan_of("--attention-backend", "torch_padded", *mixed)
    kept, jobs = Kept(), oracle.jobs[50:62]
    options = replace(OPTIONS, graph_token_counts=(16, 53)) if mixed else OPTIONS

    with simulate(schedule):
        engine = Engine.from_plan(oracle.folder, plan, "sim", options=options, observer=kept)
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:62]
    assert {step.graph_mode for step in kept.steps} == {FULL}


@axis("topk", ["1", "3"], ids=["chain", "tree"])
@axis("algorithm", ["STANDALONE", "NGRAM"])
def test_engine_replays_every_verify(
    algorithm: str, topk: str, oracle: Oracle, tmp_path: Path
) -> None:
    """Verifies run as full graphs, prompts in pieces, and both give the tokens of transformers."""
    sizes = ("--speculative-eagle-topk", topk, "--speculative-num-steps", "2")
    plan = plan_of(
        "--attention-backend", "torch_padded", "--speculative-algorithm", algorithm, *sizes
    )
    first_layers(tmp_path, oracle.folder)
    kept, jobs = Kept(), oracle.jobs[50:56]

    with simulate("lazy"):
        engine = Engine.from_plan(
            oracle.folder,
            plan,
            "sim",
            options=replace(OPTIONS, max_running_requests=4),
            observer=kept,
            draft_model_path=tmp_path if algorithm == "STANDALONE" else None,
        )
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:56]
    ran = {(step.mode, step.graph_mode) for step in kept.steps}
    assert ran == {(ForwardMode.DECODE, FULL), (ForwardMode.EXTEND, PIECEWISE)}


@axis(
    ("backend", "flags", "expected"),
    [
        pytest.param("torch_padded", (), (FULL, FULL), id="full"),
        pytest.param("torch_padded", (ENFORCED,), (PIECEWISE, FULL), id="prompts in pieces"),
        pytest.param("torch_native", (), (PIECEWISE, PIECEWISE), id="pieces"),
        pytest.param("torch_native", PADDED_DECODE, (PIECEWISE, FULL), id="a pair"),
        pytest.param("torch_native", (NO_PIECES,), (EAGER, EAGER), id="no pieces"),
        pytest.param("torch_padded", ("--disable-cuda-graph",), (EAGER, EAGER), id="eager"),
        pytest.param("torch_padded", PLAIN_LOOP, (FULL, FULL), id="full in the plain loop"),
        pytest.param("torch_native", PLAIN_LOOP, (PIECEWISE, PIECEWISE), id="pieces, plain loop"),
    ],
)
def test_engine_gives_the_same_tokens_in_every_mode(
    backend: str, flags: tuple[str, ...], expected: tuple[GraphMode, GraphMode], oracle: Oracle
) -> None:
    """Full, in pieces and eagerly: the tokens are those of transformers, and nothing races."""
    plan = plan_of("--attention-backend", backend, *flags)
    kept, jobs = Kept(), oracle.jobs[50:62]

    with simulate("lazy", check_races=True) as simulation:
        engine = Engine.from_plan(oracle.folder, plan, "sim", options=OPTIONS, observer=kept)
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:62]
    ran = {step.mode: step.graph_mode for step in kept.steps}
    assert (ran[ForwardMode.EXTEND], ran[ForwardMode.DECODE]) == expected
    assert simulation.races == ()


@axis("schedule", ["starve:1", "starve:2", "random:3"])
@axis("topk", ["1", "3"], ids=["chain", "tree"])
def test_engine_runs_mixed_and_verified_steps_in_pieces(
    topk: str, schedule: str, oracle: Oracle
) -> None:
    """Verifies of trees, and prompts that are mixed with them, run in pieces in any order."""
    backend = "torch_native" if topk == "1" else "torch_padded"
    spoken = ("--speculative-algorithm", "NGRAM", "--speculative-eagle-topk", topk)
    plan = plan_of("--attention-backend", backend, "--enable-mixed-chunk", *spoken)
    kept, jobs = Kept(), oracle.jobs[50:56]
    rows = replace(OPTIONS, graph_batch_sizes=(), max_running_requests=4)
    options = replace(rows, graph_token_counts=(16, 51))

    with simulate(schedule):
        engine = Engine.from_plan(oracle.folder, plan, "sim", options=options, observer=kept)
        tokens = run(engine, jobs)

    assert tokens == oracle.tokens[50:56]
    assert {step.graph_mode for step in kept.steps} == {PIECEWISE}
