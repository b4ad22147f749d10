"""What a speculative step makes the host wait for, and what it brings to the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from backend_caps import HostSeqLens, Plan, ServerFlags, discover, resolve
from backend_caps.relay.streams import StreamLike
from backend_caps.runtime import Engine, EngineOptions, Sampling, StepStats
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.model.random_models import eagle3_of, eagle_of, first_layers, random_llama
from backend_caps.runtime.speculation import Algorithm
from backend_caps.runtime.stats import StepTotals
from backend_caps.simulator import Counts, Simulation, Waited, WaitKind, simulate
from backend_caps.simulator.streams import Stream
from tests.cases import axis
from tests.relay.forbidding import syncs_forbidden
from tests.runtime.speculative.pairwise import pairwise_cover

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

NONE, UPPER_BOUND, EXACT = HostSeqLens
ENDLESS = Sampling(max_new_tokens=50, stop_token_ids=frozenset())
NUM_STEPS, SETTLING, NUM_SPEC_STEPS, MOST = 3, 2, 2, 4
LENGTH = torch.int64.itemsize
MIXED = ("--enable-mixed-chunk",)
READER = ("--speculative-draft-attention-backend", "torch_native")
"""A backend that slices by the mirror, in the draft's slot alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How an engine speculates."""

    algorithm: Algorithm = Algorithm.EAGLE
    topk: int = 1
    batch_size: int = 3
    replays: bool = False
    """Whether graphs run the verify, the draft steps and the draft-extend."""

    def __str__(self) -> str:
        shape = "chain" if self.topk == 1 else "tree"
        verify = "replayed" if self.replays else "eager"
        return f"{self.algorithm.value} {shape} of {self.batch_size}, {verify}"


_AXES: Mapping[str, Sequence[object]] = {
    "algorithm": (Algorithm.EAGLE, Algorithm.EAGLE3, Algorithm.STANDALONE),
    "topk": (1, 3),
    "batch_size": (1, 3),
    "replays": (False, True),
}
WAYS = [Way(**row) for row in pairwise_cover(_AXES, lambda _: True)]  # type: ignore[arg-type]
in_every_way = axis("way", WAYS, ids=str)
at_every_level = pytest.mark.parametrize("level", HostSeqLens, ids=lambda level: level.value)
on_a_gpu = pytest.mark.parametrize("device", ["cuda"], indirect=True)


Found = tuple[dict[Waited, int], dict[int, int]]
"""Waits of the host, and bytes that came to it by stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """What some steps in the middle of decoding did."""

    counts: Counts
    steps: Sequence[StepStats]
    tokens_on: int
    """The stream that steps' results come to the host on, each with an event behind it."""
    lengths_on: int | None
    """The relay's own copy stream; None where there is none."""
    pool_size: int

    @property
    def for_tokens(self) -> Found:
        """Return the wait that every step has, for its result, and the bytes of that."""
        num_requests = sum(own.num_requests for own in self.steps)
        return (
            {Waited(WaitKind.EVENT, self.tokens_on): NUM_STEPS},
            {self.tokens_on: num_requests * (2 + NUM_SPEC_STEPS) * LENGTH},
        )

    @property
    def for_tokens_and_lengths(self) -> Found:
        """Return what an exact mirror makes of it: a wait more, and the pool's column."""
        waits, crossed = self.for_tokens
        assert self.lengths_on is not None, "an exact mirror has a stream of its own"
        wait = Waited(WaitKind.STREAM, self.lengths_on)
        column = self.pool_size * LENGTH
        return {**waits, wait: NUM_STEPS}, {**crossed, self.lengths_on: NUM_STEPS * column}

    @property
    def found(self) -> Found:
        """Return all waits of the host, and the bytes that came to it by stream."""
        return dict(self.counts.waits), dict(self.counts.bytes_to_host_on)


def _handle(stream: StreamLike | None) -> int | None:
    if stream is None:
        return None
    assert isinstance(stream, Stream), "the simulated device's"
    return stream.handle


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small target, and in models beside it what drafts for it, by algorithm."""
    path = tmp_path_factory.mktemp("waits")
    target = path / "target"
    random_llama(target, vocab_size=64, hidden_size=16, num_heads=2, later_gain=0.2)
    eagle_of(path / Algorithm.EAGLE.value, target)
    eagle3_of(path / Algorithm.EAGLE3.value, target)
    first_layers(path / Algorithm.STANDALONE.value, target)
    return path


@cache
def _plan(way: Way, level: HostSeqLens, arguments: tuple[str, ...]) -> Plan:
    """Resolve a server whose backends opt out, unless the arguments or the level say more."""
    line = (
        *("--attention-backend", "torch_padded", "--context-length", "64"),
        *("--speculative-algorithm", way.algorithm.value),
        *("--speculative-eagle-topk", str(way.topk)),
        *("--speculative-num-steps", str(NUM_SPEC_STEPS)),
    )
    registry, flags = discover(), ServerFlags.from_argv((*line, *arguments))
    rules = registry.rules("sglang-0.5.23")
    plan = resolve(registry.uses(flags), flags, rules=rules, policy="quiet")
    return plan.raised("host_seq_lens", level, "a test asks for it")


def _engine(
    models: Path,
    way: Way,
    level: HostSeqLens = NONE,
    *arguments: str,
    device: torch.device | str = "sim",
    observer: StepTotals | None = None,
) -> Engine:
    options = EngineOptions(
        max_running_requests=MOST,
        chunked_prefill_size=8,
        graph_batch_sizes=(1, 3) if way.replays else (),
    )
    return Engine.from_plan(
        models / "target",
        _plan(way, level, arguments),
        device,
        options=options,
        observer=observer,
        draft_model_path=None if way.algorithm is Algorithm.NGRAM else models / way.algorithm.value,
    )


@cache
def _steady(models: Path, way: Way, level: HostSeqLens = NONE, *arguments: str) -> Steady:
    """Count steps whose batch is the same, once each, on a device that works when it must."""
    totals = StepTotals(num_first=1000)
    with simulate("lazy") as simulation:
        engine = _engine(models, way, level, *arguments, observer=totals)
        _settle(engine, way)
        totals.first.clear()
        before = simulation.counts
        for _ in range(NUM_STEPS):
            engine.step()
        tokens_on = _handle(engine.step_streams.host_copy)
        assert tokens_on is not None, "results have a stream"
        return Steady(
            counts=simulation.counts - before,
            steps=totals.first,
            tokens_on=tokens_on,
            lengths_on=_handle(engine.relay.copy_stream),
            pool_size=engine.relay.pool_size,
        )


def _settle(engine: Engine, way: Way) -> None:
    """Bring requests to the middle of their decode steps."""
    for number in range(way.batch_size):
        engine.submit([number + 1, 2, 3], ENDLESS)
    for _ in range(SETTLING + way.batch_size):
        engine.step()


@at_every_level
@in_every_way
def test_step_waits_for_its_tokens_and_for_lengths_that_are_needed(
    models: Path, way: Way, level: HostSeqLens
) -> None:
    """A step has one wait, and its tokens cross; an exact mirror costs one more, and a column."""
    steady = _steady(models, way, level)

    is_exact = level is EXACT
    assert steady.found == (steady.for_tokens_and_lengths if is_exact else steady.for_tokens)
    assert steady.counts.num_copies_to_host == (1 + is_exact) * NUM_STEPS


@pytest.mark.parametrize("algorithm", [Algorithm.EAGLE, Algorithm.STANDALONE])
def test_one_backend_that_needs_the_lengths_costs_what_the_mirror_costs(
    models: Path, algorithm: Algorithm
) -> None:
    """A draft's backend that slices by host lengths makes every step wait once more, no oftener."""
    steady = _steady(models, Way(algorithm=algorithm), NONE, *READER)

    assert steady.found == steady.for_tokens_and_lengths


@in_every_way
def test_counted_steps_verify_drafts(models: Path, way: Way) -> None:
    """What is counted are decode steps of the whole batch, by graphs where they were captured."""
    steps = _steady(models, way).steps

    assert [own.mode for own in steps] == [ForwardMode.DECODE] * NUM_STEPS
    assert [own.num_tokens > own.num_requests == way.batch_size for own in steps] == [True] * 3
    assert [own.replayed for own in steps] == [way.replays] * NUM_STEPS


@pytest.mark.parametrize("topk", [1, 3])
def test_looked_up_drafts_wait_for_tokens_alone(models: Path, topk: int) -> None:
    """Drafts of n-grams follow each result, and without a mirror that is all the host waits for."""
    way = Way(algorithm=Algorithm.NGRAM, topk=topk)

    steady = _steady(models, way, NONE, "--disable-overlap-schedule")

    assert steady.found == steady.for_tokens


def test_looked_up_drafts_with_a_mirror_wait_twice(models: Path) -> None:
    """Overlapped, the engine's rule asks for the lengths: one wait and one column more."""
    steady = _steady(models, Way(algorithm=Algorithm.NGRAM))

    assert steady.found == steady.for_tokens_and_lengths


def test_plain_loop_waits_for_its_tokens_alone(models: Path) -> None:
    """Without overlap the lengths come from results, whatever the backends need."""
    steady = _steady(models, Way(), EXACT, "--disable-overlap-schedule")

    assert steady.found == steady.for_tokens


def _run_through(
    models: Path, way: Way, level: HostSeqLens, *arguments: str
) -> tuple[Engine, Simulation, StepTotals]:
    """Run long prompts that come one after the other, in chunks, to their end."""
    totals = StepTotals(num_first=0)
    with simulate("lazy") as simulation:
        engine = _engine(models, way, level, *arguments, observer=totals)
        simulation.host_waits.clear()
        simulation.hidden_syncs.clear()
        for number in range(3):
            engine.submit([*range(1 + number, 12)], Sampling(max_new_tokens=6))
            engine.step()
        while engine.scheduler.has_work:
            engine.step()
    return engine, simulation, totals


@pytest.mark.parametrize(
    ("topk", "mixed", "level"),
    [
        pytest.param(1, (), NONE, id="chain"),
        pytest.param(3, (), UPPER_BOUND, id="tree"),
        pytest.param(3, MIXED, NONE, id="tree, mixed"),
        pytest.param(1, MIXED, UPPER_BOUND, id="chain, mixed"),
    ],
)
def test_steps_of_prompts_wait_for_their_tokens_alone(
    models: Path, topk: int, mixed: tuple[str, ...], level: HostSeqLens
) -> None:
    """From the first prompt to the last token, each step has one wait, and no operator waits."""
    way = Way(algorithm=Algorithm.STANDALONE, topk=topk)
    engine, simulation, totals = _run_through(models, way, level, *mixed)

    waited = Counter(sync.waited for sync in simulation.host_waits)
    modes = {ForwardMode.MIXED if mixed else ForwardMode.EXTEND, ForwardMode.DECODE}
    assert modes <= totals.num_steps.keys()
    assert simulation.hidden_syncs == []
    tokens_on = _handle(engine.step_streams.host_copy)
    assert waited == {Waited(WaitKind.EVENT, tokens_on): totals.num_steps.total()}


@pytest.mark.parametrize("algorithm", [Algorithm.EAGLE, Algorithm.STANDALONE])
def test_mixed_steps_wait_for_lengths_that_are_asked_for(
    models: Path, algorithm: Algorithm
) -> None:
    """With an exact mirror only steps with running requests wait for it; nothing hidden does."""
    engine, simulation, totals = _run_through(models, Way(algorithm=algorithm), EXACT, *MIXED)

    waited = Counter(sync.waited for sync in simulation.host_waits)
    relayed = totals.num_steps[ForwardMode.MIXED] + totals.num_steps[ForwardMode.DECODE]
    assert simulation.hidden_syncs == []
    assert waited[Waited(WaitKind.STREAM, _handle(engine.relay.copy_stream))] == relayed
    assert waited.total() == relayed + totals.num_steps.total()


def _profiled(act: Callable[[], object]) -> Mapping[str, int]:
    """Count calls of the CUDA runtime and copies, by name."""
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as profiler:  # without, torch warns
        act()
    return Counter(own.name.partition(" (")[0] for own in profiler.events())


def _on_cuda(models: Path, way: Way, level: HostSeqLens, device: torch.device) -> Mapping[str, int]:
    engine = _engine(models, way, level, device=device)
    _settle(engine, way)

    def decode() -> None:
        for _ in range(NUM_STEPS):
            engine.step()

    # An exact mirror waits for its stream, which is counted.
    with nullcontext() if level is EXACT else syncs_forbidden():
        decode()
        return _profiled(decode)


@on_a_gpu
@at_every_level
@in_every_way
def test_step_on_a_gpu_waits_for_its_tokens_and_for_lengths_that_are_needed(
    models: Path, device: torch.device, way: Way, level: HostSeqLens
) -> None:
    """On CUDA too a step waits for one event, and one copy crosses; an exact mirror costs a wait.

    That is one of a stream, and one copy more.
    """
    found = _on_cuda(models, way, level, device)

    for_lengths = NUM_STEPS if level is EXACT else 0
    waits = found["cudaEventSynchronize"], found["cudaStreamSynchronize"]
    assert (waits, found["Memcpy DtoH"]) == ((NUM_STEPS, for_lengths), NUM_STEPS + for_lengths)
