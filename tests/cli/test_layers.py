"""Commands of vLLM: which backend each kind of layer takes, and the plan of a command line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from backend_caps.report.launches import EngineLayersDocument
from backend_caps.report.plans import PlanDocument
from tests.cli.conftest import CommandLine
from tests.unit.engines.vllm.building import write_importable

_H100 = "--fact device_name=H100"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small engine and its models."""
    return write_importable(tmp_path_factory.mktemp("vllm"))


@pytest.fixture(autouse=True)
def _importable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(place / "engine"))


@pytest.fixture(params=["asked", "read"])
def engine(request: pytest.FixtureRequest, place: Path) -> str:
    """The options of an engine that is asked or whose source is read."""
    asked, read = f"--engine-python {sys.executable}", f"--source {place / 'engine'}"
    return f"--path @ --engine vllm {asked if request.param == 'asked' else read} {_H100}"


@pytest.fixture
def select(engine: str) -> str:
    """The command that shows layers, of either engine."""
    return f"select {engine}"


@pytest.fixture
def read(place: Path) -> str:
    """The options of an engine that is read."""
    return f"--path @ --engine vllm --source {place / 'engine'} {_H100}"


def test_layers_are_shown_with_their_backends_and_the_mode_of_graphs(
    select: str, place: Path, acme: CommandLine
) -> None:
    """So is why each other backend is not taken, and what the engine changes."""
    done = acme.run(f"{select} -- vllm serve {place}/windows --cudagraph-mode FULL")

    words = " ".join(done.stdout.split())
    assert done.exit_code == 0
    assert words.startswith(f"vllm-9.0 starts {place}/windows on H100")
    assert "1 AttentionLayerBase target WINDOW UNIFORM_BATCH FullSpec 16 64 128" in words
    assert "graphs: FULL_AND_PIECEWISE, and not FULL the least is UNIFORM_BATCH" in words
    assert "because WindowBackend supports UNIFORM_BATCH, not FULL" in words
    assert "For layers with head_size 64, has_sliding_window" in words
    assert "FULL no sliding window not supported" in words
    assert "cache_config.block_size not given 16 vllm/engine/arg_utils.py:" in words


def test_least_of_graphs_is_named_only_where_there_is_one(
    select: str, place: Path, acme: CommandLine
) -> None:
    """Three layers that are alike are one row."""
    done = acme.run(f"{select} --model-config {place}/plain -- vllm serve --attention-backend FULL")

    words = " ".join(done.stdout.split())
    assert "3 AttentionLayerBase target FULL ALWAYS FullSpec 16 64" in words
    assert "graphs: FULL_AND_PIECEWISE For layers" in words


def test_refusal_ends_with_status_1(select: str, place: Path, acme: CommandLine) -> None:
    """The engine's own words and line are shown, and nothing of layers."""
    done = acme.run(f"{select} --format json -- --model {place}/refused")
    shown = acme.run(f"{select} -- --model {place}/refused")

    document = EngineLayersDocument.model_validate(json.loads(done.stdout))
    assert done.exit_code == shown.exit_code == 1
    assert document.starts is False
    assert document.layers == []
    assert "because vllm/model_executor/model_loader/utils.py:" in shown.stdout
    assert "the model's own words" in shown.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{_H100} --model-config llama-3.1-8b", "Expected one of the two"),
        (
            f"--engine-python {sys.executable} --source . {_H100} --model-config llama-3.1-8b",
            "Expected one of the two",
        ),
        (f"--engine-python {sys.executable} {_H100}", "and --model-config MODEL"),
        (f"--engine-python {sys.executable} --model-config llama-3.1-8b", "add --fact device_name"),
    ],
)
def test_what_is_missing_is_named(acme: CommandLine, options: str, message: str) -> None:
    """A Python with vLLM, a GPU and a model are needed."""
    done = acme.run(f"select --engine vllm {options} -- --tensor-parallel-size 2")

    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_plan_is_of_the_classes_that_layers_take(
    engine: str, place: Path, acme: CommandLine
) -> None:
    """What their builders read of lengths is joined, and the engine's word for graphs holds."""
    line = f"resolve {engine} --format json -- vllm serve {place}/windows --method ngram"
    plan = PlanDocument.model_validate(acme.json(line))

    assert (plan.rules, plan.engine) == ("vllm-9.0", "vllm 9.0")
    assert plan.server["host_seq_lens"].value == "exact"
    reasons = {cause.name: cause.reason for cause in plan.server["host_seq_lens"].causes}
    file = "vllm/v1/attention/backends/classes.py"
    assert reasons == {
        "FullBackend": f"Builder: build() reads common_attn_metadata.seq_lens.cpu() ({file}:15)",
        "WindowBackend": "UniformBuilder: build() reads "
        f"common_attn_metadata.seq_lens_cpu_upper_bound ({file}:24)",
    }
    graphs = plan.phases["decode"]["graph_replay"]
    assert graphs.value == ["single_token_decode", "uniform_batch"]
    assert [each.code for each in plan.problems] == ["engine-version-unknown"]
    assert plan.launch is not None
    assert [each.backend for each in plan.launch.layers or ()] == ["FULL", "WINDOW", "FULL"]
    assert plan.launch.flags["page_size"] == 16


_CLAIMS = """\
from backend_caps import Capabilities, Declaration, Role

DECLARATION = Declaration(
    capabilities=Capabilities(
        host_seq_lens="none",
        max_context_len_known=True,
        roles=set(Role),
        {own},
        **dict.fromkeys(("page_sizes", "head_sizes", "devices", "dtypes"), "any"),
        **dict.fromkeys(("attention_arch", "compute_capability"), "any"),
    ),
    adapters={{"vllm": "{adapter}"}},
)
"""
_CUSTOM = "acme_attention:AcmeBackend"
_OWN = "vllm.v1.attention.backends.classes:WindowBackend"


def _claim(acme: CommandLine, own: str, adapter: str = _CUSTOM) -> None:
    entry_point = "[backend_caps.backends]\nclaims = claims_caps:DECLARATION\n"
    acme.install("claims", entry_point, _CLAIMS.format(own=own, adapter=adapter))


@pytest.mark.parametrize("model", ["sinks", "plain"])
def test_plugin_in_the_slot_of_layers_is_held_to_what_it_declares(
    model: str, place: Path, acme: CommandLine
) -> None:
    """A class over CUSTOM is found to declare no sinks where layers have them, and only there."""
    asked = f"--path @ --engine vllm --engine-python {sys.executable} {_H100}"
    _claim(acme, "attention_sinks=False, sliding_window=False")
    line = f"-- vllm serve {place}/{model} --attention-backend CUSTOM"

    plan = PlanDocument.model_validate(acme.json(f"resolve {asked} --format json {line}"))
    shown = "".join(acme.run(f"resolve {asked} {line}").stdout.split())
    report = acme.json(f"report {asked} --format json {line}")
    strict = acme.run(f"resolve {asked} --policy strict {line}")

    told = (
        "AttentionLayerBase layers of the target ask attention_sinks; backend 'claims' declares "
        f"attention_sinks=no (claims 1.0, {acme.root}/claims_caps.py:3)."
    )
    problems = [each.message for each in plan.problems if each.code != "engine-version-unknown"]
    assert problems == ([told] if model == "sinks" else [])
    assert plan.server["host_seq_lens"].value == "none"
    assert ("".join(told.split()) in shown) is (model == "sinks")
    assert (told in strict.stderr) is (model == "sinks")
    assert [each["facts"]["attention_sinks"] for each in report["plan"]["launch"]["layers"]] == (
        [True, False] if model == "sinks" else [False]
    )


@pytest.mark.parametrize(("own", "codes"), [("False", 1), ("True", 0)])
def test_declaration_of_a_class_is_compared_where_it_is_read_too(
    engine: str, place: Path, acme: CommandLine, own: str, codes: int
) -> None:
    """The layers with a window are asked about it, whoever has the class."""
    _claim(acme, f"sliding_window={own}", _OWN)
    line = f"-- vllm serve {place}/windows"

    plan = PlanDocument.model_validate(acme.json(f"resolve {engine} --format json {line}"))
    explained = acme.run(f"explain {engine} host_seq_lens {line}")

    found = [each.code for each in plan.problems].count("sliding-window-unsupported")
    words = " ".join(explained.stdout.split())
    assert found == codes
    assert "declares host_seq_lens=none" in words
    assert "the engine finds UNIFORM_BATCH for its AttentionLayerBase layers" in {
        each.reason for each in plan.phases["decode"]["graph_replay"].causes
    }


def test_plan_shows_layers_graphs_and_scheduling(
    engine: str, place: Path, acme: CommandLine
) -> None:
    """It is for people too."""
    line = f"resolve {engine} -- vllm serve {place}/plain"
    plain = acme.run(line)
    drafting = acme.run(f"{line} --method eagle3 --draft {place}/windows --cudagraph-mode FULL")

    words, drafted = (" ".join(each.stdout.split()) for each in (plain, drafting))
    assert "vllm-9.0 starts" in words
    assert "3 AttentionLayerBase target FULL ALWAYS FullSpec 16 64" in words
    assert "graphs: FULL_AND_PIECEWISE async scheduling: on no speculation" in words
    assert "async scheduling: on speculation: eagle3, 3 tokens" in drafted
    assert "graphs: FULL_AND_PIECEWISE, and not FULL" in drafted
    assert "host_seq_lens exact a D2H copy" in drafted


def test_refused_server_has_no_more_than_the_refusal(
    engine: str, place: Path, acme: CommandLine
) -> None:
    """Strict ends with it; else it is the plan's one problem."""
    line = f"resolve {engine} --format json -- vllm serve {place}/refused"
    plan = PlanDocument.model_validate(acme.json(line))

    strict = acme.run(line.replace("--format json", "--policy strict"))

    assert [each.code for each in plan.problems] == ["engine-refuses"]
    assert strict.exit_code == 1
    assert "the model's own words" in strict.stderr


def test_explanation_has_the_flips_of_other_lines(
    read: str, place: Path, acme: CommandLine
) -> None:
    """Each other backend and each option left out is followed; what leads to more is shown."""
    line = f"explain {read} host_seq_lens graph_replay -- vllm serve {place}/plain --method ngram"
    done = acme.run(f"{line} --attention-backend FULL --cudagraph-mode PIECEWISE")
    best = acme.run(f"{line} --attention-backend WINDOW --tensor-parallel-size 1")

    words = " ".join(done.stdout.split())
    assert "host_seq_lens upper_bound Set --attention-backend WINDOW." in words
    assert "graphs FULL_AND_PIECEWISE Leave out --cudagraph-mode PIECEWISE." in words
    assert "What would change it" not in best.stdout.partition("graph_replay")[0]


def test_refused_server_starts_without_what_it_is_refused_for(
    read: str, place: Path, acme: CommandLine
) -> None:
    """The refusal comes first, and which change ends it."""
    line = f"explain {read} -- vllm serve {place}/plain --tensor-parallel-size 16"
    done = acme.run(line)
    never = acme.run(f"explain {read} -- vllm serve {place}/refused")

    words = " ".join(done.stdout.split())
    assert words.startswith("vllm-9.0 refuses")
    assert "not so many GPUs" in words
    assert "starts yes Leave out --tensor-parallel-size 16." in words
    assert "What would change it" not in never.stdout


def test_report_has_the_plan_where_a_server_is_described(
    read: str, place: Path, acme: CommandLine
) -> None:
    """Without one, it has the classes alone."""
    shown = acme.run(f"report {read}")
    bare = acme.json(f"report {read} --format json")
    with_plan = acme.json(f"report {read} --format json -- vllm serve {place}/plain")

    words = " ".join(shown.stdout.split())
    assert "host_seq_lens: exact 1, not known 1, upper_bound 1" in words
    assert "not known: LostBuilder: self.made.build(), which takes the batch" in words
    assert "plan" not in bare or bare["plan"] is None
    assert with_plan["plan"]["engine"] == "vllm 9.0"
    names = [each["name"] for each in with_plan["backends"]]
    assert {"FULL", "FullBackend", "WINDOW", "acme_lean"} <= {*names}


def test_lock_repeats_the_command_line(
    read: str, place: Path, acme: CommandLine, tmp_path: Path
) -> None:
    """It names no folder of this machine, so `verify` is given the model's."""
    lock = tmp_path / "server.lock"
    acme.run(f"lock {read} --output {lock} -- vllm serve {place}/windows --method ngram")
    source = f"--path @ --source {place / 'engine'}"

    same = acme.run(f"verify {source} {lock} --model-config {place}/windows")
    other = acme.run(f"verify {source} {lock} --model-config {place}/plain --format json")
    lost = acme.run(f"verify {source} {lock}")

    request = json.loads(lock.read_text())["request"]
    assert request["words"] == ["--method", "ngram"]
    assert "model" not in request
    assert str(place) not in lock.read_text()
    assert (same.exit_code, other.exit_code, lost.exit_code) == (0, 1, 2)
    assert "Add --model-config FOLDER" in lost.stderr
    first, *_ = json.loads(other.stdout)["differences"]
    assert first == {
        "kind": "other-choice",
        "subject": "plan",
        "field": "target AttentionLayerBase",
        "before": "FULL",
        "after": None,
        "where": {"before": None, "after": None},
    }


def test_other_choice_comes_first_between_two_versions(
    place: Path, acme: CommandLine, tmp_path: Path
) -> None:
    """The same command line takes another backend, and replays less, in the newer version."""
    newer = tmp_path / "newer"
    shutil.copytree(place / "engine", newer)
    registry = newer / "vllm/v1/attention/backends/registry.py"
    full, window = (
        f'    {name.upper()} = "vllm.v1.attention.backends.classes.{name}Backend"\n'
        for name in ("Full", "Window")
    )
    text = registry.read_text()
    assert full + window in text
    registry.write_text(text.replace(full + window, window + full))
    sides = f"vllm@{place / 'engine'} vllm@{newer}"

    done = acme.run(f"diff {sides} {_H100} -- vllm serve {place}/plain")
    alone = acme.run(f"diff {sides}")
    lacking = acme.run(f"diff {sides} -- vllm serve {place}/plain")

    words = " ".join(done.stdout.split())
    assert "1 other backend taken" in words
    assert "plan: target AttentionLayerBase head 64 FULL WINDOW" in words
    assert "other backend taken" not in alone.stdout
    assert lacking.exit_code == 2
    assert "a server's plan is of a model on a machine; add --fact" in lacking.stderr


def test_dry_run_starts_small_in_the_servers_configuration(
    read: str, place: Path, acme: CommandLine
) -> None:
    """A stand-in runs in the place of each backend that layers take."""
    line = f"dry-run {read.replace('--path @', '')} --steps 4 --stand-in torch_padded"

    done = acme.run(f"{line} --format json -- vllm serve {place}/windows")

    document = json.loads(done.stdout)
    assert (done.exit_code, document["status"]) == (0, 0)
    assert document["plan"]["engine"] == "vllm 9.0"
    assert {each["backend"] for each in document["stand_ins"]} == {"FULL", "WINDOW"}
