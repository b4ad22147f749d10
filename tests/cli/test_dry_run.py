"""A server's configuration that is decided, and started small."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backend_caps import RuleSet, ServerFlags, discover, resolve
from backend_caps.cli.dry_run import dry_run
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.insight.run_documents import RankReport, agreement_document
from backend_caps.report.dry_run_documents import DryRunDocument
from backend_caps.runtime.model.random_models import random_llama
from tests.cases import axis, cases_of
from tests.cli.conftest import CASES, CommandLine, process
from tests.machine import free_port

ONE_PLUGIN = "--plugins backend-caps-torch-native"
DRAFTS = (
    "--speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 3 --disable-piecewise-cuda-graph"
)
FA3 = f"--attention-backend fa3 {DRAFTS} --tp 2 --chunked-prefill-size 4096"
NATIVE = "--attention-backend torch_native"
LENT = "torch_native in place of fa3"
SAYS = (
    "needs_cpu_seq_lens=False, max_context_len_known=True, sync_free_prepare=True, "
    "roles=set(Role), max_speculative_topk=1"
)


def _run(line: str) -> Result:
    own, _, flags = f"dry-run {ONE_PLUGIN} {line}".partition(" -- ")
    invocation = Invocation(server_flags=tuple(flags.split()))
    return CliRunner().invoke(cli, own.split(), obj=invocation)


def _document(line: str, status: int = 0) -> DryRunDocument:
    result = _run(f"--format json {line}")
    assert result.exit_code == status, result.stderr
    return DryRunDocument.model_validate_json(result.stdout)


@pytest.fixture(scope="module")
def lent() -> DryRunDocument:
    """A run with a stand-in, whose plan has a mirror."""
    return _document(f"--steps 8 --stand-in torch_native -- {FA3}")


@pytest.fixture(scope="module")
def own() -> DryRunDocument:
    """A run of a backend whose code is here, whose plan has graphs and no mirror."""
    few = "--max-running-requests 2"
    return _document(f"--steps 8 -- --attention-backend torch_padded {DRAFTS} {few}")


@pytest.fixture
def liars(acme: CommandLine) -> CommandLine:
    """Backends that are not as they declare."""
    acme.install_backend("peeks", SAYS, prepares="assert batch.seq_lens.sum().item() > 0")
    acme.install_backend("fails", SAYS, prepares="raise RuntimeError('no such kernel')")
    return acme


@axis(("document", "stand_in"), [("lent", LENT), ("own", None)])
def test_every_figure_names_the_stand_in(
    document: str, stand_in: str | None, request: pytest.FixtureRequest
) -> None:
    """Forwards, steps and memory say whose code they rest on, where it is another's."""
    told: DryRunDocument = request.getfixturevalue(document)
    (run,) = told.ranks

    named = {run.memory.stand_in, *(own.stand_in for own in run.phases)}
    named |= {own.stand_in for own in run.steps}

    assert (named, told.stand_ins == []) == ({stand_in}, stand_in is None)


def test_phases_are_distinguished(lent: DryRunDocument) -> None:
    """Forwards of target and draft are counted by phase; what is simulated has no times."""
    phases = [each.phase for each in lent.ranks[0].phases]

    assert {each.median_us for each in lent.ranks[0].steps} == {None}

    assert phases == ["prefill", "verify", "draft prefill", "draft", "draft_extend", "around"]


def test_mirror_is_waited_for_around_forwards(lent: DryRunDocument) -> None:
    """With a mirror the host waits for each step's tokens, and for lengths before a verify."""
    *forwards, around = lent.ranks[0].phases

    verify = next(each for each in forwards if each.phase == "verify")
    assert around.waits == {"tokens": 8, "lengths": verify.num_forwards}
    assert {each.host_waits for each in forwards} == {0}


def test_plan_without_a_mirror_brings_no_lengths(own: DryRunDocument) -> None:
    """Without a mirror nothing but tokens is waited for, and no length crosses."""
    around = own.ranks[0].phases[-1]

    assert (around.waits, around.bytes_of_lengths) == ({"tokens": 8}, 0)


def test_verify_is_replayed_where_it_was_captured(own: DryRunDocument) -> None:
    """Each verify of a backend with graphs is a replay."""
    verify = next(each for each in own.ranks[0].phases if each.phase == "verify")

    assert (verify.num_full, verify.num_eager) == (verify.num_forwards, 0)


def test_plan_is_that_of_resolve(lent: DryRunDocument) -> None:
    """A stand-in changes nothing about the decision."""
    words = f"resolve {ONE_PLUGIN} --format json".split()

    result = CliRunner().invoke(cli, words, obj=Invocation(server_flags=tuple(FA3.split())))

    assert lent.plan.fingerprint == json.loads(result.stdout)["fingerprint"]


def test_sizes_and_flags_that_are_not_the_servers_are_said(lent: DryRunDocument) -> None:
    """What is smaller here, and what does not hold here, stands in the document."""
    sizes = {each.flag: (each.server, each.here) for each in lent.sizes}

    assert sizes["--chunked-prefill-size"] == ("4096", "64")
    assert lent.left_out == ["--tp-size 2; each rank runs a whole model by itself"]


@pytest.mark.parametrize("drafts", ["", "--speculative-algorithm NGRAM --enable-mixed-chunk"])
def test_cpu_has_times_and_no_counts(drafts: str) -> None:
    """On a CPU steps have times, and nothing waits or crosses."""
    (run,) = _document(f"--device cpu --steps 6 -- {NATIVE} {drafts}").ranks

    assert all(each.median_us and each.p95_us for each in run.steps)
    assert {each.host_waits for each in run.phases} == {None}


def test_table_tells_what_happened() -> None:
    """The table ends with what came of it, and has times where there are any."""
    lent = "--stand-in torch_native --stand-in draft=torch_native"

    result = _run(f"--device cpu --steps 2 --strict {lent} -- {FA3}")

    assert result.exit_code == 1
    assert result.stdout.strip().splitlines()[-1] == (
        f"it ran as it was decided, with {LENT}; --strict refuses the plan's problems"
    )


def test_prompts_that_are_larger_than_graphs_say_so(tmp_path: Path) -> None:
    """Where prompts are not cut, those that no graph holds run eagerly, and say why."""
    sizes = tmp_path / "flags.yaml"
    sizes.write_text("chunked-prefill-size: -1\nmax-running-requests: 2\n")

    line = f"--flags-file {sizes} --steps 24 --seed 17 -- --attention-backend torch_padded"

    prefill = _document(line).ranks[0].phases[0]
    assert prefill.eager_because == ["no graph was captured that holds its batches"]
    assert prefill.num_eager < prefill.num_forwards


@axis(
    "flags",
    [
        pytest.param("--cuda-graph-max-bs-decode 1", id="a bound"),
        pytest.param("--cuda-graph-bs-decode 1 64 --disable-cuda-graph-padding", id="no padding"),
    ],
)
def test_batches_that_the_servers_graphs_do_not_hold_run_eagerly(flags: str) -> None:
    """Graphs are captured for the server's sizes, and what they do not hold runs as it would."""
    document = _document(f"--steps 12 -- --attention-backend torch_padded {flags}")

    decode = document.ranks[0].phases[1]
    assert decode.eager_because == ["no graph was captured that holds its batches"]
    assert (decode.phase, decode.num_eager > 0) == ("decode", True)


def test_model_of_a_folder_is_run(tmp_path: Path) -> None:
    """A named model is the one that runs, within the contexts that it knows."""
    random_llama(tmp_path, seed=3, max_position_embeddings=40)

    document = _document(f"--device cpu --steps 2 --model {tmp_path} -- {NATIVE}")

    sizes = {each.flag: each.here for each in document.sizes}
    assert (document.model, sizes["--context-length"]) == (str(tmp_path), "40")


@pytest.mark.parametrize(("line", "told"), cases_of(CASES / "dry_run.txt"))
def test_what_cannot_start_ends_with_2(line: str, told: str) -> None:
    """What cannot start is said with its reason, and the exit status is 2."""
    result = _run(line)

    assert result.exit_code == 2
    assert told in result.stderr


def test_plan_that_is_not_locked_ends_with_2(tmp_path: Path) -> None:
    """A plan that the lock does not have does not start; the one that it has does."""
    lock = tmp_path / "server.lock.json"
    words = f"lock {ONE_PLUGIN} --engine none --output {lock}".split()
    CliRunner().invoke(cli, words, obj=Invocation(server_flags=tuple(NATIVE.split())))

    line = f"--device cpu --steps 1 --lock {lock} -- --attention-backend"

    assert [_run(f"{line} {name}").exit_code for name in ("torch_native", "torch_padded")] == [0, 2]


def test_bytes_that_a_plan_without_a_mirror_has_not_are_found(liars: CommandLine) -> None:
    """A forward that asks the device for a number is found twice: it waits, and bytes cross."""
    result = liars.run(
        "dry-run --path @ --format json --steps 3 -- --max-running-requests 2 "
        f"--attention-backend peeks {DRAFTS}"
    )

    document = DryRunDocument.model_validate_json(result.stdout)
    found = {(each.code, each.phase) for each in document.ranks[0].findings}
    assert result.exit_code == 1
    assert {("hidden-wait", "verify"), ("bytes-without-a-mirror", "verify")} <= found


def test_step_that_raises_is_found(liars: CommandLine) -> None:
    """A server that starts and cannot run a step is not as decided."""
    result = liars.run("dry-run --path @ --device cpu -- --attention-backend fails")

    assert result.exit_code == 1
    assert "step 1 raised: RuntimeError: no such kernel" in " ".join(result.stdout.split())


def _place(rank: int, size: int, port: int) -> dict[str, str]:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {**{name: str(own) for name, own in numbers.items()}, "MASTER_ADDR": "127.0.0.1"}


def _process(words: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = process(sys.executable, "-m", *words.split(), env=environment)
    return done.returncode, done.stdout, done.stderr


def test_values_that_ranks_had_decided_apart_are_reported() -> None:
    """A value that was joined is reported with what each rank had by itself."""
    registry = discover(allow=["backend-caps-torch-native"], environ={})
    said = [ServerFlags(attention_backend=name) for name in ("torch_native", "torch_padded")]
    plans = [
        resolve(registry.uses(flags), flags, rules=RuleSet.builtin("sglang-0.5.13"))
        for flags in said
    ]
    reports = [RankReport.of(plan, plan.flags, seconds=0.1) for plan in plans]

    told = agreement_document(plans[0], reports)

    joined = {(each.capability, each.phase): each for each in told.joined}
    metadata = joined["graph_metadata", "decode"]
    assert (metadata.joint, metadata.own) == ("host", {"host": [0], "in_graph": [1]})
    assert told.rounds == 5


def test_ranks_of_torchrun_agree_and_run() -> None:
    """Ranks that torchrun starts agree; the first prints how, and what each did."""
    launcher = (
        "torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 "
        "-m backend_caps"
    )

    status, told, said = _process(
        f"{launcher} dry-run {ONE_PLUGIN} --format json --steps 2 -- {NATIVE} --tp 2"
    )

    assert status == 0, said
    document = DryRunDocument.model_validate_json(told)
    assert document.agreement is not None
    assert (document.agreement.rounds, document.agreement.joined) == (2, [])
    assert [own.rank for own in document.ranks] == [0, 1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param(f"-- {NATIVE} --page-size none", "--page-size", id="a flag is refused"),
        pytest.param(f"-- {NATIVE} --enable-dp-attention", "--enable-dp-attention", id="no start"),
    ],
)
def test_rank_that_cannot_start_says_so_under_its_number(
    monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    """What a rank of a job cannot start with is reported as its own."""
    for name, value in _place(0, 1, free_port()).items():
        monkeypatch.setenv(name, value)

    result = _run(f"--device cpu {line}")

    assert result.exit_code == 2
    assert result.stderr.startswith("rank 0: error:")
    assert told in result.stderr


@pytest.mark.slow
def test_ranks_that_were_reported_otherwise_both_end_with_2() -> None:
    """Where environments and sizes differ, each rank says so under its number, and none runs."""
    words = (
        f"backend_caps dry-run {ONE_PLUGIN} --deadline 120 -- {NATIVE} --cuda-graph-max-bs-decode"
    )
    port = free_port()
    environments = [
        {**os.environ, **_place(0, 2, port)},
        {**os.environ, **_place(1, 2, port), "BACKEND_CAPS_FLAG_PAGE_SIZE": "16"},
    ]

    with ThreadPoolExecutor() as pool:
        lines = (f"{words} {size}" for size in (2, 4))
        came = [*pool.map(_process, lines, environments)]

    assert [status for status, _, _ in came] == [2, 2]
    for rank, (_, told, said) in enumerate(came):
        assert told == ""
        assert f"rank {rank}: error: the ranks of this job differ: " in said
        assert "flag page_size is" in said
        assert "--cuda-graph-max-bs-decode is 2 on rank 0" in said


def test_deadline_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting says how long ranks wait for one another, and the option goes before it."""
    monkeypatch.setenv("BACKEND_CAPS_AGREEMENT_DEADLINE", "7")

    lines: list[list[str]] = [[], ["--deadline", "8"], ["--agreement-deadline", "9"]]
    given = [dry_run.make_context("dry-run", line).params for line in lines]

    assert [own["agreement_deadline_s"] for own in given] == [7, 8, 9]
