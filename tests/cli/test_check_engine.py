"""`backend-caps check` of an engine's own backends, and what is left out of a check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from backend_caps.cli import check_run
from backend_caps.cli.check import FORWARDS
from backend_caps.cli.main import cli
from backend_caps.discovery.registry import discover
from backend_caps.engines import read
from backend_caps.kit import (
    Case,
    Effort,
    Fault,
    Finding,
    Forward,
    Rig,
    Scenario,
    Subject,
    run_checks,
)
from backend_caps.kit.check import EngineAdapter
from backend_caps.kit.checks.numerics import NUMERICS
from backend_caps.kit.probes.playback import SteadyRun
from backend_caps.kit.scenarios import forwards_of

NO_VERIFY = frozenset({"verify"})


def _without_verify() -> Subject:
    return replace(Subject.of(discover()["torch_padded"]), without=NO_VERIFY)


def test_checks_of_an_engines_adapter_are_listed() -> None:
    """`--list --engine` has the kit's checks, and those of the adapter alone."""
    result = CliRunner().invoke(cli, ["check", "--list", "--engine", "sglang", "--format", "json"])

    codes = [own["code"] for own in json.loads(result.stdout)["checks"]]
    assert {"numerics", "sliding-window"} <= {*codes}


def test_forwards_on_the_command_line_are_those_of_the_kit() -> None:
    """What can be left out is each forward, by its name."""
    assert tuple(own.value for own in Forward) == FORWARDS


def test_forward_that_is_left_out_is_in_no_case() -> None:
    """Other forwards are tried, and this one is not."""
    subject = _without_verify()
    results = run_checks(subject, [NUMERICS], device="cpu", effort=Effort(seeds=[0]))
    names = [case.name for case in results.checks[0].cases]

    assert Forward.VERIFY not in forwards_of(subject)
    assert names
    assert not [name for name in names if "verify" in name]


def test_long_run_leaves_a_forward_out_too() -> None:
    """Steps that look for growth do not verify either."""
    scenario = Scenario(forward=Forward.DECODE)

    shapes = SteadyRun(Rig(subject=_without_verify(), device="cpu"), scenario, 0).shapes

    assert {forward for forward, *_ in shapes} == {Forward.DECODE}


_MADE = """\
from dataclasses import replace
from backend_caps import discover
from backend_caps.kit import KitError, Subject
from backend_caps.kit.check import EngineAdapter
from backend_caps.kit.checks.mirror import MIRROR_ABSENT
from backend_caps.kit.issue import IssueScript
from backend_caps_torch_native import TorchPadded

class Liar(TorchPadded):
    def init_forward_metadata(self, batch):
        assert batch.seq_lens_sum >= 0
        super().init_forward_metadata(batch)

def subject(_registry, name):
    own = Subject.of(discover()["torch_padded"])
    return replace(own, name=name, builder=Liar if name == "Liar" else TorchPadded)

ADAPTER = EngineAdapter(
    checks=[MIRROR_ABSENT], subject=subject, prepare=lambda: None,
    script=lambda *_: IssueScript(text="assert 1 == 2, 'shown'"),
)
"""
_FEW = "--only mirror-absent --seeds 1 --engine vllm"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an adapter in the place of vLLM's; the engine is read from nowhere."""
    adapter: dict[str, EngineAdapter] = {}
    exec(_MADE, adapter)  # noqa: S102 - source of this test
    monkeypatch.setattr(check_run, "engine_adapter", lambda _engine: adapter["ADAPTER"])
    monkeypatch.setattr(check_run, "version", lambda _name: "1.0")
    empty = SimpleNamespace(registry=discover([]))
    monkeypatch.setattr(read, "read_engine", lambda _engine: empty)
    return tmp_path


def test_report_to_maintainers_is_written(made: Path) -> None:
    """It has the versions, the finding and its script, and the check fails as it does without."""
    file = made / "report.md"

    result = CliRunner().invoke(cli, f"check Liar {_FEW} --report-issue {file}".split())

    assert result.exit_code == 1, result.output
    assert f"report of 1 fault written to {file}" in result.stderr
    text = file.read_text()
    assert text.startswith("# 1 fault of `Liar`\n\nVersions: python ")
    assert "assert 1 == 2, 'shown'" in text


def test_report_is_not_written_where_nothing_is_found(made: Path) -> None:
    """A class without a fault has none, and that is said."""
    file = made / "report.md"

    result = CliRunner().invoke(cli, f"check Honest {_FEW} --report-issue {file}".split())

    assert result.exit_code == 0, result.output
    assert "nothing was found" in result.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("torch_padded --report-issue a.md", "name --engine too"),
        ("Own --engine vllm --report-issue nowhere/a.md", "lies in a folder that is not there"),
    ],
)
def test_report_that_cannot_be_written_is_refused_first(words: str, why: str) -> None:
    """It is for an engine, and goes to a folder that exists."""
    result = CliRunner().invoke(cli, f"check {words}".split())

    assert result.exit_code == 2
    assert why in " ".join(result.stderr.split())


def test_command_of_a_finding_has_the_words_of_its_run() -> None:
    """What a run was given beside the name is given again."""
    finding = Finding(
        subject="own",
        claims=(),
        case=Case(check="numerics"),
        fault=Fault(what="wrong"),
        words=("--without", "verify"),
    )

    assert finding.replay == "backend-caps check --without verify own --case 'numerics/-@eager#0'"
