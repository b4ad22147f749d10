"""What `--engine` and `--source` do, over an engine that was read by hand."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

from backend_caps.discovery.process import Search
from backend_caps.engines.reading import EngineError, EngineReading, LaunchQuery
from tests.cases import cases_of, compare
from tests.cli.conftest import CASES, CommandLine
from tests.unit.report import engine_scene

_ENGINES = CASES / "engines.txt"
SPECULATING = "--speculative-algorithm EAGLE"
TRITON = "[backend_caps.backends]\ntriton = tri_caps:X\n"
TRITON_DECLARES = "from backend_caps import Declaration\nX = Declaration()\n"
NO_PLAN = "Error: a plan for vllm is of the layers of a model; add --fact device_name=H100"


@dataclass
class Reader:
    """Stands for the reader of engines, and remembers what it was asked."""

    asked: list[tuple[str, Path | None]] = field(default_factory=list)
    searched: tuple[str, ...] | None = None
    """Where plugins of the engine were to be looked for."""

    def read_engine(
        self,
        engine: str,
        source: Path | None,
        _python: Path | None,
        _query: LaunchQuery | None,
        plugins: Search | None,
    ) -> EngineReading:
        """Return one of the small engines."""
        self.asked.append((engine, source))
        self.searched = None if plugins is None else plugins.searched
        return {"sglang": engine_scene.SGLANG, "vllm": engine_scene.VLLM}[engine]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Put small engines in the place of those that are installed."""
    reader = Reader()
    module = ModuleType("backend_caps.engines.read")
    module.__dict__["read_engine"] = reader.read_engine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return reader


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(("line", "answer"), cases_of(_ENGINES))
def test_engine_is_answered_for_in_words(acme: CommandLine, line: str, answer: str) -> None:
    """Reports and plans say which engine was read, what of it was not, and whose line decides."""
    compare(_ENGINES, line, answer, acme.transcript(line))


@pytest.mark.usefixtures("reader")
def test_report_on_an_engine_as_json_has_its_keys(acme: CommandLine) -> None:
    """The JSON of a report on an engine names the engine, and is of the same schema."""
    document = acme.json("report --path @ --engine vllm --format json")

    assert document["schema"] == "backend-caps/report@1"
    assert document["engine"]["name"] == "vllm"
    own = [backend.name for backend in engine_scene.VLLM.backends]
    told = [backend["name"] for backend in document["backends"]]
    assert told == sorted([*own, "acme_lean", "acme_reads"])


def test_engine_is_read_where_it_is_said(acme: CommandLine, reader: Reader) -> None:
    """A source is handed on; without one the installed engine is read, and unasked none."""
    acme.run("report --path @")
    acme.run("report --path @ --engine sglang --source @")
    acme.run("report --path @ --engine sglang")

    assert reader.asked == [("sglang", acme.root), ("sglang", None)]


def test_plugins_of_an_engine_are_looked_for_where_others_are(
    acme: CommandLine, reader: Reader
) -> None:
    """Those are the folders of --path, and without one the path of this Python."""
    acme.run("report --path @ --engine vllm")
    within = reader.searched
    acme.run("report --engine vllm")

    assert (within, reader.searched) == ((str(acme.root),), Search.of_process().searched)


def test_lock_is_verified_beside_plugins_of_its_engine(acme: CommandLine, reader: Reader) -> None:
    """They are looked for where other plugins are, as the lock did."""
    (acme.root / "more").mkdir()
    acme.run("lock --path @ --engine vllm --output @/now.lock")
    result = acme.run("verify --path @/more @/now.lock")

    assert (result.exit_code, reader.searched) == (1, (str(acme.root / "more"),))


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(("arch", "told"), [("ssm", True), ("mha", False)])
def test_wrapper_that_the_model_brings_is_reported(
    acme: CommandLine, arch: str, told: bool
) -> None:
    """Linear attention runs in a wrapper that no flag names, so the plan may lack its word."""
    line = f"resolve --path @ --engine sglang --fact attention_arch={arch} --format json -- --tp 2"

    codes = {problem["code"] for problem in acme.json(line)["problems"]}

    assert ("engine-wrapper-not-checked" in codes) is told


@pytest.mark.usefixtures("reader")
def test_flags_are_those_of_the_engine(acme: CommandLine, tmp_path: Path) -> None:
    """An alias that the engine's source has is taken, on the command line and in a file."""
    file = tmp_path / "flags.yaml"
    file.write_text("attn: triton\n")
    line = "resolve --path @ --engine sglang --format json"

    by_line = acme.run(f"{line} -- --attn triton {SPECULATING}")
    by_file = acme.run(f"{line} --flags-file {file} -- {SPECULATING}")

    assert by_line.stdout == by_file.stdout
    assert "TritonAttnBackend" in by_line.stdout


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("rules", "held"),
    [
        pytest.param("", "sglang-0.5.23", id="the engine's own"),
        pytest.param("--rules sglang-0.5.13", "sglang-0.5.13", id="those that are named"),
    ],
)
def test_rules_are_those_of_the_engine_unless_named(
    acme: CommandLine, rules: str, held: str
) -> None:
    """An engine brings its rules; an option goes before them."""
    plan = acme.json(f"resolve --path @ --engine sglang --format json {rules} -- --attn triton")

    assert plan["rules"] == held


@pytest.mark.usefixtures("reader")
def test_engine_without_rules_or_a_command_line_has_the_named(
    acme: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the source does not say them, flags and rules are those of --rules."""
    bare = replace(engine_scene.SGLANG, rules=None, command_line=None)
    monkeypatch.setattr(engine_scene, "SGLANG", bare)

    line = "resolve --path @ --engine sglang --format json -- --attention-backend triton"

    assert acme.json(line)["rules"] == "sglang-0.5.23"


@pytest.mark.usefixtures("reader")
def test_plugin_stands_beside_the_engines_own(acme: CommandLine) -> None:
    """A name that the engine lacks is a plugin's, as without the engine."""
    line = f"resolve --path @ --engine sglang --format json -- --attn acme_reads {SPECULATING}"

    (cause, *_) = acme.json(line)["server"]["host_seq_lens"]["causes"]

    source = f"acme 1.0, {acme.root}/acme_caps.py:3"
    assert (cause["name"], cause["source"]) == ("acme_reads", source)


@pytest.mark.usefixtures("reader")
def test_engines_own_goes_before_a_plugins(acme: CommandLine) -> None:
    """A plugin of a name that the engine has itself is skipped, and said."""
    acme.install("tri", TRITON, TRITON_DECLARES)

    document = acme.json("report --path @ --engine sglang --format json -- --attn triton")

    told = [b for b in document["backends"] if b["name"] == "triton" and b["status"] == "skipped"]
    assert [each["problems"] for each in told] == [
        [
            {
                "code": "engines-own",
                "message": "backend 'triton' of tri 1.0 has the name of one that sglang 0.5.23 "
                "has itself, and the engine's goes before it.",
                "remedy": "Rename the plugin's, or leave --engine out.",
            }
        ]
    ]
    assert "TritonAttnBackend" in str(document["plan"]["server"])


def test_engine_that_is_not_installed_is_said(
    acme: CommandLine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be read, the reader's own sentence is printed."""

    def refuse(engine: str, *_: object) -> EngineReading:
        raise EngineError("engine-not-installed", f"no distribution {engine!r} is installed here.")

    monkeypatch.setitem(sys.modules["backend_caps.engines.read"].__dict__, "read_engine", refuse)

    result = acme.run("report --path @ --engine sglang")

    assert result.exit_code == 1
    assert result.stderr == "error: no distribution 'sglang' is installed here.\n"
    assert reader.asked == []


@pytest.mark.parametrize(("line", "answer"), cases_of(CASES / "engine.txt"))
def test_error_is_said_before_anything_is_read(
    acme: CommandLine, reader: Reader, line: str, answer: str
) -> None:
    """What an engine cannot do is a usage error, and costs no reading."""
    assert (acme.refusal(line), reader.asked) == (answer, [])


def test_flags_in_the_environment_count_as_flags(
    acme: CommandLine, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of vLLM without a model is refused wherever its flags come from."""
    monkeypatch.setenv("BACKEND_CAPS_FLAG_PAGE_SIZE", "16")

    result = acme.run("report --path @ --engine vllm")

    assert (result.exit_code, reader.asked) == (2, [])
    assert result.stderr.splitlines()[-1].startswith(NO_PLAN)
