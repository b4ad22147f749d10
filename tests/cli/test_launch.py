"""What becomes of a server's command line in an engine that is read, and in its plan."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from backend_caps.capability.gpu import Gpu
from backend_caps.engines.model import Model
from backend_caps.engines.reading import EngineReading, Fault, LaunchQuery
from backend_caps.report.lock import LockDocument
from backend_caps.resolution.launch import Launch, Refusal, Rewrite, Unchecked
from tests.cli.conftest import CommandLine
from tests.unit.report import engine_scene

_MODEL = "--engine sglang --model-config llama-3.1-8b"
_H100 = "--fact device_name=H100"
_TAKES = ("triton", "fa3")
"""What the engine accepts; the first is its own choice."""


def _launches(query: LaunchQuery) -> list[Launch]:
    """Answer as an engine would that takes some backends, and may lack a package for one."""
    return [_launch(list(words), query.gpu, query.num_gpus, query.model) for words in query.lines]


def _launch(words: list[str], gpu: Gpu, num_gpus: int, model: Model) -> Launch:
    named = [own for option, own in pairwise(words) if option == "--attention-backend"]
    backend = [_TAKES[0], *named][-1]
    at = "sglang/srt/server_args.py:7"
    own = Launch(
        engine="sglang-0.5.23",
        machine=f"{num_gpus} {gpu.key}",
        model=model.name,
        rewrites=(Rewrite(name="page_size", before=None, after=64, at=at),),
        flags={"attention_backend": backend, "page_size": 64, "disable_cuda_graph": False},
    )
    if backend == "fa3":
        unchecked = Unchecked(message="deep_ep is missing", at=at, unless="find_spec('deep_ep')")
        return replace(own, unchecked=(unchecked,))
    if backend not in _TAKES or "--broken" in words:
        return replace(own, refusal=Refusal(message=f"no {backend} here", at=at), flags={})
    return own


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path | None, Path | None]]:
    """Put an engine that was read by hand in the place of those that are installed."""
    asked: list[tuple[str, Path | None, Path | None]] = []

    def read_engine(
        engine: str, source: Path | None, python: Path | None, *_: object
    ) -> EngineReading:
        asked.append((engine, source, python))
        launches = None if source is not None else _launches
        return replace(engine_scene.SGLANG, launches=launches, problems=())

    module = ModuleType("backend_caps.engines.read")
    module.__dict__["read_engine"] = read_engine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_plan_is_of_what_the_engine_ends_with(acme: CommandLine) -> None:
    """The server starts, with the engine's own backend and page size; its lines say where."""
    result = acme.run(f"resolve --path @ {_MODEL} {_H100} -- --speculative-algorithm EAGLE")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert "sglang-0.5.23 starts llama-3.1-8b on 8 H100" in lines
    assert any(line.split() == _REWRITE.split() for line in lines)


_REWRITE = "page_size not given 64 sglang/srt/server_args.py:7"


def test_machine_has_as_many_gpus_as_a_fact_says(acme: CommandLine) -> None:
    """The number of GPUs is a fact; the document has the launch."""
    document = acme.json(f"resolve --path @ {_MODEL} {_H100} --fact num_gpus=2 --format json")

    launch = document["launch"]
    assert (launch["machine"], launch["starts"]) == ("2 H100", True)
    assert launch["flags"]["page_size"] == 64
    assert document["problems"] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--attention-backend wave", "no wave here (sglang/srt/server_args.py:7)"),
        ("--attention-backend fa3", "deep_ep is missing"),
    ],
)
def test_strict_refuses_what_the_engine_may_refuse(
    acme: CommandLine, flags: str, words: str
) -> None:
    """A refusal is in the engine's words, and what is not known is refused as well."""
    refusal = acme.refusal(f"resolve --path @ {_MODEL} {_H100} --policy strict -- {flags}")

    assert refusal.startswith("1 error: ")
    assert words in refusal


@pytest.mark.parametrize(
    ("given", "line", "launched"),
    [
        (f"--engine sglang {_H100}", "--model-path meta-llama/Llama-3.1-8B", True),
        (f"--engine sglang {_H100}", "--model=llama-3.1-8b", True),
        (f"--engine sglang {_H100}", "--model-path acme/own", False),
        (f"--engine sglang {_H100}", "--tp 2", False),
        ("--engine sglang", "--model-path llama-3.1-8b", False),
        (_H100, "--model-path llama-3.1-8b", False),
    ],
)
def test_model_is_that_of_the_command_line(
    acme: CommandLine, given: str, line: str, *, launched: bool
) -> None:
    """Where its configuration is known, and a GPU is, the command line is followed."""
    document = acme.json(f"resolve --path @ {given} --format json -- {line}")

    assert (document.get("launch") is not None) is launched


def test_auto_is_the_engines_own_choice(acme: CommandLine) -> None:
    """The word is left out of the command line that the engine gets."""
    document = acme.json(
        f"resolve --path @ {_MODEL} {_H100} --format json -- --attention-backend auto"
    )

    assert document["launch"]["starts"] is True
    assert document["launch"]["flags"]["attention_backend"] == "triton"
    assert document["problems"] == []


def test_flags_of_files_and_environment_are_in_the_command_line(
    acme: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine gets what a file of flags, the settings and the environment say."""
    flags, settings = tmp_path / "flags.yaml", tmp_path / "settings.yaml"
    flags.write_text("attention_backend: wave\ntrust-remote-code: false\n")
    settings.write_text("server: {attention-backend: hpc_ops}\n")
    line = f"resolve --path @ {_MODEL} {_H100} --policy strict"

    by_file = acme.refusal(f"{line} --flags-file {flags}")
    by_settings = acme.refusal(f"{line} --config {settings}")
    over = acme.run(f"{line} --flags-file {flags} -- --attention-backend triton")
    monkeypatch.setenv("BACKEND_CAPS_FLAG_ATTENTION_BACKEND", "flashmla")
    by_environment = acme.refusal(f"{line} --config {settings}")

    assert "no wave here" in by_file
    assert "no hpc_ops here" in by_settings
    assert "no flashmla here" in by_environment
    assert over.exit_code == 0


def test_dry_run_starts_what_the_engine_starts(acme: CommandLine) -> None:
    """The plan that runs small is of the engine's own choice; what it refuses does not start."""
    line = f"dry-run --plugins backend-caps-torch-native --steps 2 {_MODEL} {_H100}"

    ran = acme.run(f"{line} --stand-in torch_native")
    refusal = acme.refusal(f"{line} -- --attention-backend wave")

    assert "sglang-0.5.23 starts llama-3.1-8b on 8 H100" in ran.stdout.splitlines()
    assert "stand-in: torch_native in place of triton" in ran.stdout
    assert refusal.startswith("2 error: sglang-0.5.23 does not start llama-3.1-8b on 8 H100")


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        (
            f"resolve --model-config llama-3.1-8b {_H100}",
            "Error: --model-config is for an engine's start; add --engine.",
        ),
        (
            f"resolve {_MODEL} {_H100} --source @",
            "Error: --model-config is for an engine's start; add --engine.",
        ),
        (f"resolve {_MODEL}", "--model-config is for a server's start on a machine; add --fact"),
        (f"resolve --engine-python {sys.executable}", "names no engine; add --engine."),
        (
            f"resolve --engine sglang --source @ --engine-python {sys.executable}",
            "Error: --source and --engine-python both name an engine; leave one out.",
        ),
        (f"select --engine sglang {_H100}", "add --model-config MODEL"),
        (f"resolve --fact device_name=H101 {_MODEL}", "Input should be one of T4"),
    ],
)
def test_what_a_launch_needs_is_said(acme: CommandLine, line: str, refusal: str) -> None:
    """An option that is missing, or one too many, is wrong usage."""
    found = acme.refusal(f"{line} --path @ -- --tp 2")

    assert found.startswith("2 ")
    assert refusal in found


def test_python_of_an_engine_is_handed_on(
    acme: CommandLine, reader: list[tuple[str, Path | None, Path | None]]
) -> None:
    """The environment that has the engine is named by its Python."""
    acme.run(f"resolve --path @ --engine sglang --engine-python {sys.executable} -- --tp 2")

    assert reader == [("sglang", None, Path(sys.executable))]


def test_selection_has_every_backend_of_the_engine(acme: CommandLine) -> None:
    """The default comes first, then what starts, what may, and what does not, each with why."""
    line = f"select --path @ {_MODEL} {_H100}"
    flags = (
        "-- --attention-backend=wave --decode-attention-backend wave --speculative-algorithm EAGLE"
    )

    document = acme.json(f"{line} --format json {flags}")

    own = engine_scene.SGLANG.command_line
    assert own is not None
    first, *others = document["candidates"]
    assert document["default"] == first["name"] == "triton"
    assert (first["is_default"], first["starts"], first["page_size"]) == (True, True, 64)
    assert {each["name"] for each in document["candidates"]} == own.attention_backends
    assert [each["starts"] for each in others] == sorted(
        (each["starts"] for each in others), key=[True, None, False].index
    )
    assert all(each["why"] and each["at"] for each in others if each["starts"] is not True)
    shown = acme.run(f"{line} {flags}").stdout
    assert "sglang-0.5.23 takes triton for llama-3.1-8b on 8 H100" in shown
    assert "triton (default)" in shown


def test_selection_leaves_out_what_is_for_other_hardware(
    acme: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's arguments take the name, and the class imports what the machine lacks."""
    classes = {each.name: each.engine_class for each in engine_scene.SGLANG.backends}
    path = classes["TritonAttnBackend"]
    assert path is not None
    fault = Fault(path=path.path, at="a.py:7", message="import aiter", devices=frozenset({"rocm"}))
    monkeypatch.setattr(engine_scene, "SGLANG", replace(engine_scene.SGLANG, faults=(fault,)))

    line = f"select --path @ {_MODEL} {_H100} --fact device=cuda"
    [found] = [
        each
        for each in acme.json(f"{line} --format json")["candidates"]
        if each["name"] == "triton"
    ]

    assert (found["starts"], found["at"], found["page_size"]) == (False, None, None)
    assert "is for rocm, by what it imports at a.py:7: import aiter" in found["why"]
    shown = " ".join(acme.run(line).stdout.split())
    assert "import aiter; here it is cuda." in shown
    assert "None" not in shown


def test_selection_where_nothing_starts_has_status_1(acme: CommandLine) -> None:
    """Where the engine refuses the rest of the command line, no backend fits."""
    result = acme.run(f"select --path @ {_MODEL} {_H100} -- --broken")

    assert result.exit_code == 1
    assert "sglang-0.5.23 takes no backend by itself" in result.stdout
    assert "because no triton here" in result.stdout


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (None, {"device": "cpu"}),
        (
            "NVIDIA H100 80GB HBM3",
            {
                "device": "cuda",
                "device_name": "H100",
                "num_gpus": "4",
                "compute_capability": "9.0",
                "rocm": "no",
            },
        ),
        (
            "NVIDIA H101",
            {"device": "cuda", "num_gpus": "4", "compute_capability": "9.0", "rocm": "no"},
        ),
    ],
)
def test_facts_are_those_of_the_machine(
    acme: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str | None, facts: dict[str, str]
) -> None:
    """What torch finds is written as --fact takes it; a GPU without a short name is named."""
    answers = {
        "is_available": name is not None,
        "get_device_name": name,
        "device_count": 4,
        "get_device_capability": (9, 0),
    }
    stand_in = {key: lambda *_, each=each: each for key, each in answers.items()}
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(**stand_in))

    document = acme.json("facts --format json")

    assert document["facts"] == facts
    assert document["unnamed_gpu"] == ("NVIDIA H101" if name == "NVIDIA H101" else None)
    shown = acme.run("facts").stdout
    assert "As options: --fact device=" in shown
    assert ("NVIDIA H101 has no short name here" in shown) is (name == "NVIDIA H101")


def test_engine_without_a_class_that_can_be_read_is_wrong_usage(
    acme: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no class could be read nothing is known, and the status says so."""
    torn = replace(engine_scene.SGLANG, backends=())
    reads = sys.modules["backend_caps.engines.read"].__dict__
    monkeypatch.setitem(reads, "read_engine", lambda *_: torn)

    refusal = acme.refusal("report --path @ --engine sglang")

    assert refusal.startswith("2 Error: no class of a backend could be read of sglang 0.5.23. ")
    assert "Expected --source or --engine-python with a whole sglang." in refusal


def test_diff_of_engines_is_of_a_servers_plans_too(acme: CommandLine) -> None:
    """Both sides follow the command line; here they are the same engine."""
    line = f"diff sglang sglang@ {_H100} --model-config llama-3.1-8b -- --tp 2"

    same = acme.run(line.replace("diff sglang ", "diff sglang@installed "))

    assert (same.exit_code, same.stdout.splitlines()) == (
        0,
        ["Nothing differs between sglang@installed and sglang@."],
    )


def test_lock_of_a_followed_server_is_repeated(acme: CommandLine, tmp_path: Path) -> None:
    """It holds the command line and the stored model, and the plan of what the engine ends with."""
    lock = tmp_path / "server.lock"
    acme.run(f"lock --path @ {_MODEL} {_H100} --output {lock} -- --tp 2")

    done = acme.run(f"verify --path @ {lock}")

    document = LockDocument.model_validate_json(lock.read_text())
    assert (document.request.words, document.request.model) == (("--tp", "2"), "llama-3.1-8b")
    assert document.plan is not None
    assert document.plan.launch is not None
    assert document.plan.launch.model == "llama-3.1-8b"
    assert (done.exit_code, done.stderr) == (0, "")


def test_explanation_follows_the_engines_other_backends(acme: CommandLine) -> None:
    """A backend that the engine refuses, or may refuse, leads to nothing."""
    line = f"explain --path @ {_MODEL} {_H100} -- --speculative-algorithm EAGLE"

    done = acme.run(f"{line} --broken")
    taken = acme.run(line)

    assert "Set --attention-backend" not in done.stdout + taken.stdout
    assert taken.exit_code == 0
