"""Evidence on the command line: what reports show of it, what requires it, and who writes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend_caps.capability.evidence import declaration_digest
from backend_caps.cli.check_run import CheckOptions, check_backend
from backend_caps.discovery.evidence import Implementation, imports_of, versions_of
from backend_caps.discovery.registry import discover
from backend_caps.kit.rig import CASE_DEADLINE_S
from tests.cli.conftest import CommandLine
from tests.unit.evidence import HELD, evidence

_DECLARES = """\
from backend_caps import Capabilities, Declaration, OneOf, Role

FAST = Declaration(
    capabilities=Capabilities(
        needs_cpu_seq_lens=False, max_context_len_known=True, roles=set(Role),
        dtypes={"float32"}, page_sizes=OneOf({1}), head_sizes=OneOf({16}),
    ),
    implementation="fast.backend:build",
)
"""
_BACKEND = """\
def build(site):
    from backend_caps_torch_native import TorchPadded
    return TorchPadded(site)
"""
_SERVER = "-- --attention-backend fast --speculative-algorithm EAGLE --disable-piecewise-cuda-graph"


@pytest.fixture
def line(acme: CommandLine) -> CommandLine:
    """Install a backend whose package has evidence beside it, fresh but for what tests change."""
    acme.install("fast", "[backend_caps.backends]\nfast = fast_caps:FAST\n", _DECLARES)
    package = acme.root / "fast"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "backend.py").write_text(_BACKEND)
    return acme


@pytest.fixture
def kept(line: CommandLine) -> Path:
    """Evidence that the mirror, its bound and the roles were checked."""
    declaration = discover([line.root])["fast"].declaration
    imports = imports_of([line.root])
    implementation = Implementation.of("fast.backend:build", imports)
    assert declaration is not None
    assert implementation is not None
    held = dict.fromkeys(("host_seq_lens", "max_context_len_known", "roles"), HELD)
    written = evidence(held)
    installed = versions_of({"torch", "backend-caps"}, imports)
    versions = {"distribution": "fast", "version": "1.0", "torch": installed["torch"]}
    changes = {
        "backend": "fast",
        "kit_version": installed["backend-caps"],
        "versions": written.versions.model_copy(update=versions),
        "source": implementation.digest(),
        "declaration": declaration_digest(declaration),
    }
    file = implementation.evidence_file("fast")
    file.parent.mkdir()
    file.write_text(written.model_copy(update=changes).text())
    return file


@pytest.mark.usefixtures("kept")
def test_report_marks_what_is_verified(line: CommandLine) -> None:
    """A claim with evidence has its mark, and the report says where that comes from."""
    output = line.run("report --path @").output
    document = line.json("report --format json --path @")

    (fast,) = [each for each in document["backends"] if each["name"] == "fast"]
    assert ("none ✓" in output, "2026-11-22 on sim, 2 seeds" in output) == (True, True)
    assert (fast["evidence"]["device"], fast["evidence"]["changes"]) == ("sim", [])
    assert fast["capabilities"]["host_seq_lens"]["evidence"] == "verified"
    assert "evidence" not in fast["capabilities"]["dtypes"]


def test_report_tells_stale_evidence(line: CommandLine, kept: Path) -> None:
    """A line more in the implementation, and the mark is another."""
    (kept.parents[1] / "backend.py").write_text(f"{_BACKEND}\n# mended\n")

    output = line.run("report --path @").output

    assert ("none ~" in output, "the source changed" in output) == (True, True)


def test_report_of_no_evidence_has_no_word_of_it(line: CommandLine) -> None:
    """Where there is none, the report is as it was."""
    assert "Evidence" not in line.run("report --path @").output


@pytest.mark.parametrize(
    ("option", "headline"),
    [
        pytest.param("", "host_seq_lens is none", id="believed"),
        pytest.param("--require-evidence", "host_seq_lens is exact", id="required"),
    ],
)
def test_plan_requires_evidence_where_that_is_options(
    line: CommandLine, option: str, headline: str
) -> None:
    """Without evidence a claim counts, unless evidence is required."""
    assert headline in line.run(f"resolve {option} --path @ {_SERVER}").output


@pytest.mark.usefixtures("kept")
def test_plan_believes_what_is_verified(line: CommandLine) -> None:
    """With evidence a claim counts, required or not."""
    output = line.run(f"resolve --require-evidence --path @ {_SERVER}").output

    assert "host_seq_lens is none" in output


def test_explanation_says_what_is_not_verified(line: CommandLine) -> None:
    """The cause has an origin of its own, and what would change it is a command."""
    output = line.run(f"explain --require-evidence --path @ {_SERVER}").output

    words = " ".join(output.split())
    assert "exact (unverified)" in words
    assert "declares host_seq_lens=none, not verified (no evidence)" in words
    assert "backend-caps check fast --write-evidence" in words


def test_selection_requires_evidence_where_that_is_options(line: CommandLine) -> None:
    """A candidate that fits by its word alone is reported to be unchecked."""
    ask = "--format json --fact dtype=float32 --path @ -- --attention-backend auto"

    outputs = [line.run(f"select {option} {ask}").output for option in ("", "--require-evidence")]

    assert ["not verified" in output for output in outputs] == [False, True]


def test_report_shows_claims_that_its_plan_does_not_believe(line: CommandLine) -> None:
    """A report is of what is declared, and its plan of what is verified."""
    document = line.json(f"report --require-evidence --format json --path @ {_SERVER}")

    (fast,) = [each for each in document["backends"] if each["name"] == "fast"]
    assert fast["capabilities"]["host_seq_lens"]["value"] == "none"
    assert document["plan"]["needs_cpu_seq_lens"] is True


def test_lock_asks_for_evidence_again(line: CommandLine, tmp_path: Path) -> None:
    """What a lock was written with, a comparison requires too."""
    lock = tmp_path / "lock.json"
    line.run(f"lock --require-evidence --path @ --output {lock} {_SERVER}")

    result = line.run(f"verify {lock} --path @")

    locked = json.loads(lock.read_text())
    assert (locked["request"]["requires_evidence"], result.exit_code) == (True, 0)


def _options(line: CommandLine, evidence: str) -> CheckOptions:
    return CheckOptions(
        device="sim",
        only=("declaration-hygiene",),
        case=None,
        quick=True,
        seeds=None,
        lines=False,
        case_deadline=CASE_DEADLINE_S,
        evidence=evidence,
        path=(line.root,),
        engine=None,
        without=(),
        report_issue=None,
    )


def test_check_keeps_its_evidence_beside_the_implementation(
    line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no file is named, a report finds it; a second run leaves it as it is."""
    file = line.root / "fast" / "evidence" / "fast.json"

    for _ in range(2):
        check_backend("fast", _options(line, ""), discover([line.root]))

    assert capsys.readouterr().err.splitlines() == [
        f"evidence written to {file}",
        f"evidence is as it was in {file}",
    ]
    assert "Evidence" in line.run("report --path @").output


def test_check_keeps_its_evidence_where_it_is_reported(line: CommandLine, tmp_path: Path) -> None:
    """A file that is named is written, and no other."""
    file = tmp_path / "mine.json"

    check_backend("fast", _options(line, str(file)), discover([line.root]))

    assert json.loads(file.read_text())["backend"] == "fast"
    assert not (line.root / "fast" / "evidence").exists()
