"""`backend-caps check`: what is run, what is shown, and the status."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from click.testing import CliRunner

from backend_caps import HostSeqLens
from backend_caps.cli.check_run import Run, check_document
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.kit import CheckResult, CheckStep, Effort, Journal, Results, Verdict, find_case
from backend_caps.kit.checks import CHECKS
from backend_caps.kit.costs import BatchCost, PartCost
from backend_caps.kit.scenarios import Forward
from backend_caps.report.check_documents import CheckDocument
from backend_caps.supervisor import Log
from tests.cli.conftest import CommandLine, process
from tests.kit.made import HONEST as HONEST_SUBJECT

HONEST = """\
from backend_caps import Capabilities, Declaration, Given, OneOf, Part, Role, When

SMALL = {
    "page_sizes": OneOf({1}), "head_sizes": OneOf({16}), "dtypes": {"float32"},
    "needs_cpu_seq_lens": False, "max_context_len_known": True,
}
HONEST = Declaration(
    capabilities=Capabilities(**SMALL), implementation="honest_caps:build",
    conditions=[
        When(
            given=Given(dtype={"float16"}), reason="a path of its own",
            capabilities=Capabilities(needs_cpu_seq_lens=True, auto_priority=3),
        )
    ],
)
LIAR = HONEST.model_copy(update={"implementation": "honest_caps:build_liar"})
RAISES = HONEST.model_copy(update={"implementation": "honest_caps:build_nothing"})
ABSENT = HONEST.model_copy(update={"implementation": "nowhere:Backend"})
BOTH = Declaration(parts=[Part("honest"), Part("liar")])

def build(site):
    from backend_caps_torch_native import TorchPadded
    print("building")
    return TorchPadded(site)

def build_liar(site):
    from backend_caps_torch_native import TorchPadded
    class Liar(TorchPadded):
        def init_forward_metadata(self, batch):
            if batch.batch_size == 1:
                assert batch.seq_lens_sum >= 0
            super().init_forward_metadata(batch)
    return Liar(site)

def build_nothing(site):
    raise RuntimeError("no kernel")
"""
ENTRIES = "\n".join(
    [
        "[backend_caps.backends]",
        *(
            f"{name} = honest_caps:{name.upper()}"
            for name in ("honest", "liar", "raises", "absent", "both")
        ),
    ]
)
FEW = "--only mirror-absent --seeds 1 --no-lines --path @"


@pytest.fixture
def line(acme: CommandLine) -> Iterator[CommandLine]:
    """The command line over backends of which one lies about requests that are alone."""
    acme.install("honest", ENTRIES, HONEST)
    yield acme
    sys.modules.pop("honest_caps", None)


def _document(line: CommandLine, words: str, status: int = 0) -> CheckDocument:
    result = line.run(f"check {words} --format json")
    assert result.exit_code == status, result.stderr
    return CheckDocument.model_validate_json(result.stdout)


def test_check_that_holds_ends_with_0(line: CommandLine) -> None:
    """The table says that nothing was found, and in how many cases."""
    result = line.run(f"check honest {FEW}")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[1].startswith("Backend 'honest' on sim: nothing found in ")


def test_check_that_fails_ends_with_1(line: CommandLine) -> None:
    """The finding has claim, case, seed, schedule, the line of the plugin, and its command."""
    finding = _document(line, f"liar {FEW}", status=1).findings[0]
    case = "mirror-absent/decode,float32,page-1,head-16x4:2@eager#0"
    assert (finding.claims, finding.case) == (["host_seq_lens"], case)
    assert (finding.seed, finding.schedule) == (0, "eager")
    assert finding.file == str(line.root / "honest_caps.py")
    assert finding.line == 1 + HONEST.splitlines().index(
        "                assert batch.seq_lens_sum >= 0"
    )
    assert finding.replay == f"backend-caps check liar --case '{case}' --path {line.root}"


def test_finding_is_replayed_by_its_command(line: CommandLine) -> None:
    """The one case runs alone, and finds the same."""
    found = _document(line, f"liar {FEW}", status=1).findings[0]

    again = _document(line, f"liar --case {found.case} --no-lines --path @", status=1)

    assert again.findings == [found]
    assert again.checks[0].cases == [found.case]
    assert again.effort.seeds == [0]


def test_case_that_ended_a_process_is_reported_and_not_run_again(line: CommandLine) -> None:
    """Where a process before this one was ended in the case, that is the finding."""
    name, log = "mirror-absent/decode,float32,page-1,head-16x4:2@eager#0", Log()
    check, case = find_case(HONEST_SUBJECT, CHECKS, name)
    so_far = CheckResult(check=check, status=Verdict.NOT_CHECKED)
    Journal(log, HONEST_SUBJECT, CHECKS)(CheckStep(result=so_far, case=case))
    log.crash(-signal.SIGSEGV)

    asked = f"check honest --case {name} --no-lines --format json --path {line.root}"
    with closing(log):
        result = CliRunner().invoke(cli, asked.split(), obj=Invocation(log=log))

    document = CheckDocument.model_validate_json(result.stdout)
    told = [finding.what for finding in document.findings]
    assert told == ["ended the process by SIGSEGV (Segmentation fault)"]


def test_replay_names_the_device(line: CommandLine) -> None:
    """What was found on another device than the simulated one is run there again."""
    finding = _document(line, f"liar --device cpu {FEW}", status=1).findings[0]

    assert finding.replay.endswith(f"' --device cpu --path {line.root}")


def test_claims_are_reported_one_by_one(line: CommandLine) -> None:
    """What was not looked at is not checked, and says why; never held."""
    claims = {own.capability: own for own in _document(line, f"honest {FEW}").claims}

    told = {name: (own.status, own.reason) for name, own in claims.items()}
    assert told["host_seq_lens"] == ("held", None)
    assert told["dtypes"] == ("not checked", "its checks were not asked for")
    assert told["auto_priority"] == ("not checked", "no check is about it")
    assert (claims["host_seq_lens"].conditional, claims["dtypes"].conditional) == (True, None)
    assert claims["graph_replay"].value == "undeclared"


def test_check_that_does_not_apply_is_no_fault(line: CommandLine) -> None:
    """A claim that asks for nothing has its reason, and the status is 0."""
    few = FEW.replace("mirror-absent", "mirror-bound")

    document = _document(line, f"honest {few}")

    (own,) = document.checks
    assert (document.status, own.status, own.applies) == ("not checked", "not checked", False)
    assert own.reason is not None


def test_check_that_cannot_run_ends_with_2(line: CommandLine) -> None:
    """Where each case has nothing to be compared with, nothing is known."""
    document = _document(line, f"raises {FEW}", status=2)

    (own,) = document.checks
    assert document.is_stopped
    assert own.num_blocked > 0
    assert "no kernel" in str(own.reason)


def test_forwards_that_ran_are_counted(line: CommandLine) -> None:
    """Roles, phases and kinds of batch that nothing ran are among them, with none."""
    exercised = {own.forward: own for own in _document(line, f"honest {FEW}").exercised}

    assert exercised["decode"].num_cases > 0
    assert exercised["draft"].num_cases == 0
    assert (exercised["verify"].role, exercised["verify"].phase) == ("target", "verify")


def test_lines_that_ran_are_counted(line: CommandLine) -> None:
    """Lines of the backend's own file are reported, with those that no case reached."""
    document = _document(line, f"honest {FEW.replace('--no-lines', '')}")

    assert document.lines is not None
    (file,) = document.lines.files
    assert file.file == str(line.root / "honest_caps.py")
    assert 0 < document.lines.num_run < document.lines.num_lines
    assert len(file.missing) > 0


_FOUR = ["mirror-absent", "mirror-bound", "inputs-untouched", "padding-harmless"]
"""As many checks as two processes share."""
_QUICK = "honest --quick --seeds 1 --path @"


def _four(line: CommandLine, words: str) -> CheckDocument:
    return _document(line, " ".join([words, *(f"--only {code}" for code in _FOUR)]))


def test_lines_of_both_processes_are_counted(line: CommandLine) -> None:
    """Lines are missed where no check reached them, in either process."""
    alone = [_document(line, f"{_QUICK} --lines --only {code}").lines for code in _FOUR]

    lines = _four(line, f"{_QUICK} --lines").lines

    assert lines is not None
    assert lines.num_run == max(each.num_run for each in alone if each is not None)


def test_prints_of_both_processes_are_counted(line: CommandLine) -> None:
    """What a backend prints in either process stands once; they may build it less often."""
    alone = [_document(line, f"{_QUICK} --no-lines --only {code}").printed for code in _FOUR]

    (printed,) = _four(line, f"{_QUICK} --no-lines").printed

    counts = [own.count for each in alone for own in each]
    assert printed.text == "building"
    assert max(counts) <= printed.count <= sum(counts)


def test_costs_stand_in_the_document() -> None:
    """What each forward costs is written part by part."""
    part = PartCost(launches=3, host_waits=1, bytes_to_host=32, bytes_to_device=0)
    cost = BatchCost(
        forward=Forward.DECODE,
        host_seq_lens=HostSeqLens.EXACT,
        num_requests=4,
        num_context_tokens=90,
        prepare=part,
        layer=replace(part, launches=5),
        bytes_held=4096,
    )
    results = Results(subject=HONEST_SUBJECT, device="sim", checks=[])

    document = check_document(Run(results=results, effort=Effort(), costs=[cost]), CHECKS)

    assert document.costs is not None
    (written,) = document.costs
    assert (written.forward, written.host_seq_lens) == ("decode", "exact")
    assert (written.prepare.launches, written.layer.launches) == (3, 5)
    assert (written.prepare.bytes_to_host, written.bytes_held) == (32, 4096)


def test_lines_are_counted_only_where_wanted(line: CommandLine) -> None:
    """`--no-lines` leaves them out, and so does `--quick`, unless they are asked for."""
    quick = f"honest {FEW.replace('--no-lines', '--quick')}"

    assert _document(line, f"honest {FEW}").lines is None
    assert _document(line, quick).lines is None
    assert _document(line, f"{quick} --lines").lines is not None


def test_what_a_backend_says_is_reported_once(line: CommandLine) -> None:
    """What is printed while cases run is in the document, and nowhere else."""
    result = line.run(f"check honest {FEW} --format json")

    said = CheckDocument.model_validate_json(result.stdout).printed
    assert [own.text for own in said] == ["building"]
    assert said[0].count > 1
    assert result.stderr == ""


def test_quick_tries_less(line: CommandLine) -> None:
    """It has fewer seeds and steps, unless seeds are given."""
    few = FEW.replace("--seeds 1", "--quick")

    assert _document(line, f"honest {few}").effort.seeds == [0, 1]
    assert _document(line, f"honest {few} --seeds 3").effort.seeds == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param("liars", "no backend 'liars' is declared; declared: ", id="unknown backend"),
        pytest.param("liars", "Did you mean 'liar'?", id="near backend"),
        pytest.param("both", "it is a composite: check its parts, honest, liar", id="composite"),
        pytest.param("absent", "No module named 'nowhere'", id="no implementation"),
        pytest.param("honest --only numeric", "there is no check 'numeric'", id="unknown check"),
        pytest.param("honest --case a/b@c#1", "has no case 'a/b@c#1'", id="unknown case"),
    ],
)
def test_what_cannot_be_checked_ends_with_2(line: CommandLine, words: str, told: str) -> None:
    """What is not there is reported with what is, on standard error alone."""
    result = line.run(f"check {words} --no-lines --path @")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert told in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_device_that_is_not_here_ends_with_2(line: CommandLine) -> None:
    """A GPU cannot be checked on where there is none."""
    result = line.run("check honest --device cuda --path @")

    assert result.exit_code == 2
    assert "device 'cuda' is not available" in result.stderr


def test_check_is_written_to_files_too(line: CommandLine, tmp_path: Path) -> None:
    """One run serves people and CI systems: the ending says what is written."""
    files = [tmp_path / f"check.{ending}" for ending in ("json", "md", "sarif", "xml")]
    words = " ".join(f"--also {file}" for file in files)

    result = line.run(f"check liar {FEW} {words}")

    texts = [file.read_text("utf-8") for file in files]
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].startswith("Backend 'liar' on sim: ")
    assert CheckDocument.model_validate_json(texts[0]).findings
    assert texts[1].startswith("## Backend 'liar' on sim: ")
    assert json.loads(texts[2])["version"] == "2.1.0"
    assert ET.fromstring(texts[3]).tag == "testsuites"  # noqa: S314 - our own


def _num_failures(text: str) -> int:
    root = ET.fromstring(text)  # noqa: S314 - our own
    assert root.get("failures") == str(len([*root.iter("failure")]))
    return int(root.get("failures", ""))


@pytest.mark.parametrize(
    ("format_", "count"),
    [("junit", _num_failures), ("sarif", lambda text: len(json.loads(text)["runs"][0]["results"]))],
)
def test_check_is_printed_for_ci(
    line: CommandLine, format_: str, count: Callable[[str], int]
) -> None:
    """What CI systems and code hosts read holds the findings, and the status is the same."""
    result = line.run(f"check liar {FEW} --format {format_}")

    assert (result.exit_code, count(result.stdout) > 0) == (1, True)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        pytest.param("check.txt", "does not say what to write", id="ending"),
        pytest.param("none/check.md", "lies in a folder that is not there", id="folder"),
    ],
)
def test_file_that_cannot_be_written_is_refused_first(
    file: str, told: str, line: CommandLine, tmp_path: Path
) -> None:
    """Before anything runs."""
    result = line.run(f"check liar {FEW} --also {tmp_path / file}")

    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def test_file_that_takes_nothing_ends_with_2(line: CommandLine) -> None:
    """What was found is printed all the same."""
    result = line.run(f"check honest {FEW} --also /proc/check.md")

    assert result.exit_code == 2
    assert "--also /proc/check.md was not written: " in result.stderr
    assert "nothing found" in result.stdout


def test_list_has_every_check(line: CommandLine) -> None:
    """Each with what it proves and what it cannot; nothing is run."""
    table = line.run("check --list")
    document = line.json("check --list --only numerics --format json")

    assert [check.code for check in CHECKS if check.code not in table.stdout] == []
    assert document["schema"] == "backend-caps/check-list@1"
    assert [own["code"] for own in document["checks"]] == ["numerics"]


@pytest.mark.slow
def test_backend_is_found_among_what_is_installed() -> None:
    """Without `--path`, the environment is searched; the document alone is printed."""
    words = ("torch_native", "--only", "mirror-bound", "--no-lines", "--format", "json")

    ran = process(sys.executable, "-m", "backend_caps", "check", *words)

    document = CheckDocument.model_validate_json(ran.stdout)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert document.distribution == "backend-caps-torch-native"
    assert Path(str(document.declared_at).rpartition(":")[0]).name == "torch_native_caps.py"
