"""Two-batch overlap from prompts to tokens, on two streams that run in any order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from backend_caps_torch_native import TorchNative

from backend_caps import UNDECLARED, HostSeqLens, Plan, Use, resolve
from backend_caps.runtime import Engine, EngineOptions, ForwardBatch, GraphMode, Sampling, StepStats
from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.model.random_models import first_layers
from backend_caps.simulator import simulate
from tests.cases import axis
from tests.runtime.engines import make_engine, plan_of, run
from tests.runtime.observed import Kept
from tests.runtime.oracle import Oracle

TBO = "--enable-two-batch-overlap"
SIX_TOKENS = Sampling(max_new_tokens=6, stop_token_ids=frozenset())
PADDED = ("--attention-backend", "torch_padded")
CHAIN = ("--speculative-algorithm", "STANDALONE", "--speculative-num-steps", "2")
TREE = (*CHAIN, "--speculative-eagle-topk", "2")
NO_GRAPHS = ("--disable-cuda-graph",)
OPTIONS = EngineOptions(
    max_running_requests=5, chunked_prefill_size=48, graph_batch_sizes=(1, 2, 4)
)
SIDE, BRANCH = 4, 33
"""The second half's stream, of eager forwards and of replays."""
WAYS = [
    pytest.param((), "starve:2", id="graphs, the first half starves"),
    pytest.param((), f"starve:{BRANCH}", id="graphs, the second half starves"),
    pytest.param(NO_GRAPHS, f"starve:{SIDE}", id="eager, the second half starves"),
]


def halved(*arguments: str) -> Plan:
    """Resolve a server that cuts its batches."""
    return plan_of(*arguments, TBO)


class _Run:
    """What an engine did, on a device that runs its work in some order."""

    def __init__(
        self,
        oracle: Oracle,
        order: str,
        *arguments: str,
        drafts: Path | None = None,
        check_races: bool = False,
        options: EngineOptions = OPTIONS,
    ) -> None:
        kept = Kept()
        with simulate(order, check_races=check_races) as simulation:
            engine = Engine.from_plan(
                oracle.folder,
                halved(*arguments),
                "sim",
                options=options,
                observer=kept,
                draft_model_path=drafts,
            )
            self.tokens = run(engine, oracle.jobs[50:58])
            self.expected = oracle.tokens[50:58]
            self.races = simulation.races
            self.host_seq_lens = engine.relay.host_seq_lens
        self.steps = kept.steps

    def of(self, mode: ForwardMode) -> list[StepStats]:
        """List the steps of a kind."""
        return [step for step in self.steps if step.mode is mode]


@pytest.fixture(scope="session")
def drafts(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a small model that drafts for the oracle's."""
    folder = tmp_path_factory.mktemp("drafts")
    first_layers(folder, oracle.folder)
    return folder


@axis(("flags", "order"), WAYS)
@axis("steps", [(), CHAIN, TREE], ids=["decode", "chain", "tree"])
def test_halves_give_the_tokens_of_the_whole(
    steps: tuple[str, ...], flags: tuple[str, ...], order: str, oracle: Oracle, drafts: Path
) -> None:
    """In any order of the two streams, the tokens are those of transformers."""
    ran = _Run(oracle, order, *PADDED, *steps, *flags, drafts=drafts if steps else None)

    assert ran.tokens == ran.expected


@axis("flags", [(), NO_GRAPHS], ids=["graphs", "eager"])
@axis("steps", [(), CHAIN, TREE], ids=["decode", "chain", "tree"])
def test_halves_race_with_nothing_and_wait_for_no_lengths(
    steps: tuple[str, ...], flags: tuple[str, ...], oracle: Oracle, drafts: Path
) -> None:
    """Every step of two requests or more runs in halves; no step waits for lengths, none races."""
    given = drafts if steps else None
    ran = _Run(oracle, "lazy", *PADDED, *steps, *flags, drafts=given, check_races=True)

    assert ran.tokens == ran.expected
    assert ran.races == ()
    assert {(step.in_halves, step.num_requests > 1) for step in ran.steps} == {
        (True, True),
        (False, False),
    }
    decodes = ran.of(ForwardMode.DECODE)
    assert {step.num_requests for step in decodes} == {1, 2, 3, 4, 5}
    assert {step.replayed for step in decodes} == {not flags}
    assert ran.host_seq_lens is HostSeqLens.NONE
    assert not any(step.waits_for_lengths for step in ran.steps)


def test_mixed_steps_with_drafts_run_in_halves_without_lengths(
    oracle: Oracle, drafts: Path
) -> None:
    """Prompts mixed with speculative rows are cut where the scheduler cut them, in any order."""
    options = replace(OPTIONS, chunked_prefill_size=16)

    ran = _Run(
        oracle,
        f"starve:{SIDE}",
        *PADDED,
        *CHAIN,
        "--enable-mixed-chunk",
        drafts=drafts,
        options=options,
    )

    assert ran.tokens == ran.expected
    assert {step.in_halves for step in ran.of(ForwardMode.MIXED)} == {True}
    assert ran.host_seq_lens is HostSeqLens.NONE


@axis("order", ["lazy", f"starve:{SIDE + 1}"])  # the mirror has a stream too
def test_halves_of_a_backend_that_reads_lengths_have_them(
    order: str, oracle: Oracle, drafts: Path
) -> None:
    """Where the backend reads the mirror the relay brings it, and it cannot be captured."""
    native = ("--attention-backend", "torch_native")

    ran = _Run(oracle, order, *native, *CHAIN, drafts=drafts)

    assert ran.tokens == ran.expected
    assert ran.host_seq_lens is HostSeqLens.EXACT
    decodes = [step for step in ran.of(ForwardMode.DECODE) if step.num_requests > 1]
    assert {(step.in_halves, step.graph_mode) for step in decodes} == {(True, GraphMode.EAGER)}


def test_pieces_that_a_flag_asks_for_hold_whole_batches(oracle: Oracle) -> None:
    """Prompts run in pieces, whole; decodes run in captured halves all the same."""
    options = replace(OPTIONS, graph_token_counts=(48,))

    ran = _Run(oracle, "lazy", *PADDED, "--enforce-piecewise-cuda-graph", options=options)

    assert ran.tokens == ran.expected
    assert {(step.in_halves, step.graph_mode) for step in ran.of(ForwardMode.EXTEND)} == {
        (False, GraphMode.PIECEWISE)
    }
    assert any(step.in_halves for step in ran.of(ForwardMode.DECODE))


def test_plain_engine_decodes_two_requests_in_two_halves(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under two-batch overlap a backend prepares for one request of two, twice in each step."""
    prepare, sizes = TorchNative.init_forward_metadata, []

    def counted(backend: TorchNative, batch: ForwardBatch) -> None:
        if batch.mode is ForwardMode.DECODE:
            sizes.append(batch.batch_size)
        prepare(backend, batch)

    monkeypatch.setattr(TorchNative, "init_forward_metadata", counted)
    engine = make_engine(oracle.folder, TBO)
    requests = [engine.submit(job.prompt, SIX_TOKENS) for job in oracle.jobs[5:7]]
    engine.drain()

    assert [len(own.output) for own in requests] == [6, 6]
    assert (set(sizes), len(sizes) >= 2 * 5) == ({1}, True)


def test_backend_that_cannot_runs_whole(oracle: Oracle) -> None:
    """Where a backend does not declare it, no batch is cut, and no second backend is built."""
    padded = halved(*PADDED)
    uses = tuple(_without_halves(use) for use in padded.uses)
    plan = resolve(uses, padded.flags, rules=padded.rules, policy="quiet")
    kept = Kept()

    engine = Engine.from_plan(oracle.folder, plan, "cpu", options=OPTIONS, observer=kept)

    assert run(engine, oracle.jobs[50:53]) == oracle.tokens[50:53]
    assert not any(step.in_halves for step in kept.steps)
    assert len(engine.all_backends) == 1


def _without_halves(use: Use) -> Use:
    assert use.declaration is not None
    stated = use.declaration.capabilities.model_copy(update={"two_batch_overlap": UNDECLARED})
    return replace(use, declaration=use.declaration.model_copy(update={"capabilities": stated}))
