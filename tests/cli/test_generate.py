"""Prompts that run under the plan of a server's flags."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import click
import pytest
from click.testing import Result

from backend_caps import ServerFlags, configure
from backend_caps.cli.generate import generate
from backend_caps.report.generate_documents import GenerateDocument
from backend_caps.runtime import Engine, EngineOptions
from backend_caps.runtime.metrics import Metrics
from backend_caps.runtime.model.random_models import random_llama
from tests.cases import cases_of
from tests.cli.conftest import CASES, PREPARES_AT, CommandLine, generated, outputs_of

NATIVE = "--attention-backend torch_native"
PADDED = "--attention-backend torch_padded"
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]]


@pytest.fixture
def own(acme: CommandLine) -> CommandLine:
    """The command line over a backend with code of its own, which asks the device for a number."""
    asks = "assert batch.seq_lens.sum().item() > 0"
    acme.install_backend("own", "needs_cpu_seq_lens=True", prepares=asks, base="TorchNative")
    return acme


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder."""
    folder = tmp_path / "model"
    random_llama(folder, seed=3)
    return folder


def _refused(result: Result) -> tuple[int, str]:
    return result.exit_code, result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        pytest.param("", NATIVE, id="overlapped"),
        pytest.param("", f"{NATIVE} --disable-overlap-schedule", id="not overlapped"),
        pytest.param("", f"{NATIVE} --page-size 16", id="pages of 16"),
        pytest.param("--chunked-prefill-size 2", f"{NATIVE} --enable-mixed-chunk", id="mixed"),
        pytest.param("--max-running-requests 1", NATIVE, id="one at a time"),
        pytest.param("", PADDED, id="another backend"),
    ],
)
def test_generate_gives_the_tokens_of_the_engine(
    line: CommandLine, model: Path, options: str, flags: str
) -> None:
    """Whatever the flags are, the tokens are those that the engine gives by itself."""
    plan = configure(ServerFlags(attention_backend="torch_native"), pool_size=2, device="cpu").plan

    document = generated(
        line, f"--model {model} --token-ids 1,2,3 --token-ids 4,5,6,7,8,9,10 {options}", flags
    )

    assert outputs_of(document) == Engine.from_plan(model, plan, "cpu").generate(PROMPTS, 6)


def test_generate_runs_under_the_resolved_plan(line: CommandLine) -> None:
    """The backends that run are those of the flags, and the plan is theirs."""
    flags = "--prefill-attention-backend torch_native --decode-attention-backend torch_padded"

    document = generated(line, flags=flags)

    assert document.backends == {"prefill": "torch_native", "decode": "torch_padded"}
    replay = document.plan.phases["decode"]["graph_replay"]
    assert [cause.name for cause in replay.causes] == ["torch_padded"]


@pytest.mark.parametrize("num_steps", [2, 1000])
def test_generate_sums_the_steps_that_it_shows_and_others(
    line: CommandLine, num_steps: int
) -> None:
    """Steps are cut to what was asked for; the sums are of every one."""
    document = generated(line, f"--prompts 3 --steps {num_steps}")

    steps, run = document.steps, document.run
    assert [step.number for step in steps] == [*range(1, min(num_steps, 6) + 1)]
    assert (run.num_steps, run.num_made) == ({"extend": 1, "decode": 5}, 18)
    if num_steps > 6:
        assert run.host_us == pytest.approx(sum(step.host_us for step in steps) / len(steps))


def test_generate_without_streams_has_no_waits_and_no_bytes(line: CommandLine) -> None:
    """On the CPU nothing waits and nothing crosses, so no number says that something did."""
    document = generated(line, "--prompts 1")

    run, first = document.run, document.steps[0]
    assert (run.planned_waits, run.bytes_to_host, run.bytes_to_device) == (None, None, None)
    assert (first.wait_us, first.bytes_to_host, first.bytes_to_device) == (None, None, None)


def test_generate_cuts_prompts_where_it_is_asked_to(line: CommandLine) -> None:
    """No step has more prompt tokens than the chunk's size."""
    document = generated(line, "--chunked-prefill-size 5")

    tokens = [step.num_tokens for step in document.steps if step.mode == "extend"]
    assert max(tokens) == 5


def test_generate_runs_no_more_requests_than_it_may(line: CommandLine) -> None:
    """The others are queued."""
    document = generated(line, "--prompts 5 --max-running-requests 2 --steps 1000")

    assert max(step.num_requests for step in document.steps) == 2


def test_generate_with_a_seed_repeats_itself(line: CommandLine) -> None:
    """Sampling is drawn from the seed alone, and is not greedy."""
    sampled = "--token-ids 1,2,3 --temperature 2 --seed 5"

    one, other = generated(line, sampled), generated(line, sampled)

    assert outputs_of(one) == outputs_of(other)
    assert outputs_of(one) != outputs_of(generated(line, "--token-ids 1,2,3 --seed 5"))


@pytest.mark.parametrize(
    ("flags", "because"),
    [
        pytest.param(NATIVE, "its backend does not declare it in graph_replay", id="the backend"),
        pytest.param(PADDED, "the device has no graphs", id="the device"),
        pytest.param(
            f"{PADDED} --disable-cuda-graph", "--disable-cuda-graph is given", id="a flag"
        ),
    ],
)
def test_generate_says_why_steps_are_eager(line: CommandLine, flags: str, because: str) -> None:
    """What keeps decode steps from a full graph is named, as far as the plan knows it."""
    document = generated(line, "--prompts 1", flags)

    (decode,) = (own for own in document.graphs.phases if own.phase == "decode")
    assert document.run.num_eager == document.run.num_steps
    assert because in decode.refused["full"]


@pytest.mark.parametrize("flags", ["", "--disable-overlap-schedule"])
def test_generate_says_whether_steps_overlap(line: CommandLine, flags: str) -> None:
    """The loop is the plan's; on a device without streams there is no share to tell."""
    run = generated(line, "--prompts 1", f"{NATIVE} {flags}").run

    assert (run.overlap, run.overlap_ratio) == (not flags, None)


def test_generate_shows_metrics_of_what_was_asked_for(line: CommandLine) -> None:
    """The metrics say what the sums say, and neither counts a step of the warm-up."""
    document = generated(line, "--token-ids 1,2,3 --metrics")

    metrics, run = document.metrics, document.run
    assert metrics is not None
    assert metrics["backend_caps_generation_tokens_total"] == run.num_made
    assert run.num_steps == {"extend": 1, "decode": 5}
    assert metrics['backend_caps_steps_total{mode="extend",run="eager"}'] == 1.0


def test_generate_says_where_it_serves_metrics(line: CommandLine) -> None:
    """The address is on standard error, for the port may be any."""
    result = line.run(f"generate --metrics-port 0 -- {NATIVE}")

    assert result.exit_code == 0
    assert re.fullmatch(r"metrics: http://127\.0\.0\.1:\d+/metrics\n", result.stderr)


def test_generate_refuses_a_port_that_is_taken(line: CommandLine) -> None:
    """A taken port is a sentence and a status."""
    with Metrics().serve(0) as port:
        status, message = _refused(line.run(f"generate --metrics-port {port} -- {NATIVE}"))

    assert status == 1
    assert message.startswith(f"error: metrics cannot be served on 127.0.0.1:{port}: ")


@pytest.mark.parametrize(
    ("options", "flags", "num_tokens"),
    [
        pytest.param("--token-ids 1,2,3", NATIVE, 9, id="one prompt and its output"),
        pytest.param(
            "--token-ids 1,2,3 --token-ids 1", f"{NATIVE} --page-size 4", 20, id="whole pages"
        ),
        pytest.param(
            "--token-ids 1,2,3 --token-ids 1 --max-running-requests 1",
            NATIVE,
            9,
            id="the longest of those that run at once",
        ),
        pytest.param("--max-total-tokens 77", NATIVE, 77, id="what was asked for"),
        pytest.param(
            "--prompts 40", f"{NATIVE} --context-length 32", 256, id="at most eight contexts"
        ),
    ],
)
def test_generate_makes_room_for_what_runs(
    line: CommandLine, options: str, flags: str, num_tokens: int
) -> None:
    """The KV cache of a long context is as small as what these requests can fill."""
    run = generated(line, options, flags).run

    assert (run.max_total_tokens, run.num_retracted > 0) == (num_tokens, options == "--prompts 40")


def test_generate_imports_the_backend_from_its_folder(
    own: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a folder of --path declares runs from there, however the folder is written."""
    monkeypatch.chdir(own.root.parent)

    result = own.run("generate --path site --prompts 1 --format json -- --attention-backend own")

    assert result.exit_code == 0, result.stderr
    assert GenerateDocument.model_validate_json(result.stdout).backends["decode"] == "own"
    assert [folder for folder in sys.path if folder.endswith("site")] == []


def test_generate_counts_the_problems_of_the_plan(own: CommandLine) -> None:
    """What the plan is not sure of is one line, and not a page before the run."""
    result = own.run("generate --path @ --prompts 1 -- --attention-backend own")

    assert result.stderr == "warning: the plan has 5 problems; --policy strict names them\n"


def test_generate_on_the_simulated_device_gives_the_same_tokens(line: CommandLine) -> None:
    """In any order that the device could choose, the tokens are those of the CPU."""
    asked = "--token-ids 1,2,3 --token-ids 4,5,6,7"

    simulated = generated(line, f"{asked} --device sim --schedule lazy")

    assert outputs_of(simulated) == outputs_of(generated(line, asked))
    assert simulated.simulation is not None
    assert (simulated.simulation.schedule, simulated.device) == ("lazy", "sim:0")


def test_generate_on_the_simulated_device_finds_hidden_syncs(own: CommandLine) -> None:
    """A backend that asks the device for a number is named with its line, once a step."""
    document = generated(own, "--path @ --prompts 1 --device sim", "--attention-backend own")

    assert document.simulation is not None
    syncs = document.simulation.hidden_syncs
    assert len(syncs) == sum(document.run.num_steps.values())
    assert {sync.rpartition("/")[2] for sync in syncs} == {f"own_caps.py:{PREPARES_AT}"}


@pytest.mark.slow
def test_generate_on_the_simulated_device_replays_what_sizes_were_named(line: CommandLine) -> None:
    """A batch size that is named is captured; without any, decode is eager and says so."""
    named = generated(line, "--prompts 1 --device sim --graph-batch-sizes 1", PADDED).run
    result = line.run(f"generate --device sim --graph-batch-sizes= --format json -- {PADDED}")

    (decode,) = (
        own
        for own in GenerateDocument.model_validate_json(result.stdout).graphs.phases
        if own.phase == "decode"
    )
    assert "decode" not in named.num_eager
    assert decode.refused["full"] == ["--graph-batch-sizes names none"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "mode"),
    [
        pytest.param("64", "piecewise", id="room for all"),
        pytest.param("1", "eager", id="room for less"),
    ],
)
def test_generate_runs_in_pieces_what_sizes_were_named(
    counts: str, mode: str, line: CommandLine
) -> None:
    """A backend without full graphs runs in pieces, as far as the largest size goes."""
    document = generated(line, f"--token-ids 1,2,3 --device sim --graph-token-counts {counts}")

    run = document.run
    assert {step.graph_mode for step in document.steps if step.mode == "extend"} == {mode}
    assert run.num_in_pieces["decode"] == run.num_steps["decode"]
    assert ("extend" in run.eager_because) is (mode == "eager")


@pytest.mark.slow
def test_generate_counts_the_memory_of_graphs(line: CommandLine) -> None:
    """Graphs, their pool and what is beside it are counted on a device that has graphs."""
    graphs = generated(line, "--prompts 1 --device sim --graph-token-counts 16").graphs

    assert graphs.num_graphs > 1
    assert graphs.pool_bytes > 0
    assert graphs.static_bytes > 0


@pytest.mark.parametrize(
    ("takes", "option", "told"),
    [
        ("head_sizes=Exact(128)", "", "head_size 128; here it is 16."),
        ("dtypes={'float16'}", "--dtype bfloat16", "dtype float16; here it is bfloat16."),
        ("dtypes={'float16'}", "", "dtype float16; here it is float32."),
    ],
    ids=["the model's head size", "a named dtype", "the model's own dtype"],
)
def test_generate_resolves_for_what_it_computes(
    acme: CommandLine, takes: str, option: str, told: str
) -> None:
    """A backend that does not take what the model or an option says is refused before it runs."""
    source = (
        "from backend_caps import Capabilities, Declaration, Exact\n"
        f"HALF = Declaration(capabilities=Capabilities({takes}))\n"
    )
    acme.install("half", "[backend_caps.backends]\nhalf = half_caps:HALF\n", source)

    refused = acme.run(f"generate --path @ --policy strict {option} -- --attention-backend half")

    assert f"backend 'half' takes {told}" in refused.stderr


def test_generate_converts_weights_where_a_dtype_is_named(line: CommandLine, model: Path) -> None:
    """A model of float16 is refused by the option's name, and runs with it."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))

    refused = line.run(f"generate --model {model} -- {NATIVE}")
    run = generated(line, f"--model {model} --dtype bfloat16 --prompts 1").run

    assert "the model's dtype is 'float16'" in refused.stderr
    assert "Add --dtype bfloat16" in refused.stderr
    assert run.num_made == 6


@pytest.mark.parametrize(("command", "answer"), cases_of(CASES / "generate.txt"))
def test_generate_refuses_in_a_sentence(line: CommandLine, command: str, answer: str) -> None:
    """What cannot run or draft is named, with what was expected and what to do."""
    assert line.refusal(command) == answer


def test_generate_names_the_list_that_leaves_every_backend_out(
    acme: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something is installed, it is not said that nothing is."""
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "")

    result = acme.run("generate --path @")

    assert "was expected: none, BACKEND_CAPS_PLUGINS leaves out acme_lean, acme_reads. Write" in (
        result.stderr
    )


@pytest.mark.parametrize(
    "name",
    ["max_running_requests", "max_prefill_tokens", "graph_batch_sizes", "graph_token_counts"],
)
def test_generate_has_the_defaults_of_the_engine(name: str) -> None:
    """The command may not load torch for its help, so it repeats numbers that are the engine's."""
    context = click.Context(generate)
    option = next(option for option in generate.params if option.name == name)

    default = option.process_value(context, option.get_default(context))

    assert default == asdict(EngineOptions())[name]


@pytest.mark.slow
def test_generate_runs_halves_in_captured_decodes(line: CommandLine) -> None:
    """Under two-batch overlap a graph of decode has both halves, and the run says so."""
    flags = "--attention-backend torch_padded --enable-two-batch-overlap"
    document = generated(line, "--token-ids 1,2,3 --token-ids 4,5 --device sim", flags)

    phases = {own.phase: own for own in document.graphs.phases}
    decode = phases["decode"]
    assert (decode.effective, decode.in_halves) == ("full", True)
    assert decode.in_halves_because == "a captured graph has both halves"
    assert document.run.num_in_halves["decode"] == document.run.num_steps["decode"]
    assert document.run.num_eager.get("decode", 0) == 0
