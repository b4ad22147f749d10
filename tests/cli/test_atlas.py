"""`backend-caps atlas build` and `ask`: what is read, written and answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backend_caps.cli import atlas
from backend_caps.cli.main import cli
from backend_caps.report.progress import progress_line, terminal_of
from tests.unit.atlas.wheels import write_vllm


@pytest.fixture(autouse=True)
def _wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work beside two releases; nothing is downloaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_vllm(tmp_path / "wheels", "0.30.0")
    write_vllm(tmp_path / "wheels", "0.31.0", sinks=False)


def _run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def _build(*ranges: str) -> Result:
    options = ("--releases", "wheels", "--offline", "--workers", "1")
    return _run("atlas", "build", "site", *(ranges or ("vllm",)), *options)


def test_build_reads_and_writes_and_goes_on() -> None:
    """The second time nothing is read."""
    first, second = _build("vllm==0.30.0"), _build()

    assert first.stdout.splitlines()[0] == "1 releases read"
    assert second.stdout.splitlines()[0] == "1 releases read, 1 kept"
    assert second.stdout.endswith("pages written: open site/index.html\n")
    assert Path("site/backends/vllm/FastBackend.html").is_file()


def test_build_of_what_is_nowhere_is_refused() -> None:
    """The error is a sentence."""
    result = _build("vllm>=9")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: no release 'vllm>=9' is in wheels")


def test_build_shows_how_far_it_is_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is erased at the end."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(
        "backend_caps.report.progress.progress_line",
        lambda *columns: progress_line(*columns, console=terminal_of(None)),
    )

    with atlas.progress_bar() as progress:
        progress("vllm 0.30.0", 1, 2)


def _ask(*words: str) -> list[str]:
    result = _run("ask", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


def test_ask_answers_of_a_source() -> None:
    """What was understood comes first, then what fits, then the reasons of the others."""
    source = "wheels/vllm-0.30.0-py3-none-any.whl"
    text = "\n".join(_ask("bf16, sinks", "--engine", "vllm", "--source", source))

    assert text.startswith("bf16: dtypes bfloat16\nsinks: attention_sinks yes\n")
    assert text.index("1 fits") < text.index("FastBackend") < text.index("1 does not fit")
    assert "dtypes: float16 at vllm/v1/attention/backend.py:" in text


def test_ask_answers_of_the_atlas() -> None:
    """It asks the newest release, or the one that is named."""
    _build()
    words = ("ask", "sinks, bf16", "--atlas", "site", "--format", "json")

    new = json.loads(_run(*words).stdout)
    old = json.loads(_run(*words, "--release", "0.30.0").stdout)

    assert [(e["version"], e["backend"], e["answer"]) for e in new["answers"]] == [
        ("0.31.0", "FastBackend", "does not fit"),
        ("0.31.0", "SlowBackend", "does not fit"),
    ]
    assert old["answers"][0]["answer"] == "fits"


def test_ask_says_that_nothing_was_understood() -> None:
    """No backend is shown as if it were an answer."""
    source = "wheels/vllm-0.30.0-py3-none-any.whl"

    assert _ask("what else", "--engine", "vllm", "--source", source) == [
        "nothing of the question was understood"
    ]


def test_ask_needs_an_engine_or_an_atlas() -> None:
    """The error names both options."""
    result = _run("ask", "sinks")

    assert result.exit_code == 2
    assert "Name an engine, --engine vllm, or a folder of the atlas, --atlas FOLDER." in (
        " ".join(result.stderr.split())
    )


def test_ask_of_a_release_that_the_atlas_lacks_names_those_there() -> None:
    """An empty folder has none."""
    _build()
    Path("empty").mkdir()

    one = _run("ask", "sinks", "--atlas", "site", "--release", "9.0")
    other = _run("ask", "sinks", "--atlas", "empty")

    assert (one.exit_code, other.exit_code) == (2, 2)
    assert "there: vllm 0.30.0 to 0.31.0." in " ".join(one.stderr.split())
    assert "there: none." in " ".join(other.stderr.split())
