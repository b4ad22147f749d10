"""`backend-caps check` of backends whose native code ends the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from backend_caps.report.check_documents import CheckDocument
from tests.cases import axis

CAPS = """\
from backend_caps import Capabilities, Declaration, OneOf

def made(where):
    return Declaration(
        capabilities=Capabilities(
            page_sizes=OneOf({1}), head_sizes=OneOf({16}), dtypes={"float32"},
            needs_cpu_seq_lens=False, max_context_len_known=True,
        ),
        implementation=where,
    )

SEGV, ABORT, EXIT = made("ends:Segv"), made("ends:Abort"), made("ends:Exit")
IMPORT, SLOW = made("ends_at_once:Backend"), made("ends:Slow")
KEEPS = made("ends:Keeps")
"""
BACKENDS = """\
import ctypes, os, time
from backend_caps_torch_native import TorchPadded

class Segv(TorchPadded):
    def init_forward_metadata(self, batch):
        super().init_forward_metadata(batch)
        if batch.batch_size > 1 and batch.mode.name == "DECODE":
            self.end()

    def end(self):
        ctypes.string_at(0)

class Abort(Segv):
    def end(self):
        os.abort()

class Exit(Segv):
    def end(self):
        os._exit(0)

class Keeps(Segv):
    def end(self):
        native, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        native.pthread_mutex_lock(mutex)
        native.pthread_mutex_lock(mutex)  # for ever, with Python's lock: no handler of it runs

class Slow(Segv):
    def end(self):
        print("slow", file=open("began", "w"))
        time.sleep(60)
"""
NAMES = ("segv", "abort", "exit", "import", "keeps", "slow")
LINE = 1 + BACKENDS.splitlines().index("        ctypes.string_at(0)")
KEEPS_LINE = next(n for n, line in enumerate(BACKENDS.splitlines(), 1) if "for ever" in line)
CASE = (
    "mirror-absent/decode,float32,page-1,"
    "head-16x6:2,requests-8,layers-2,scores-high,separate@eager#1"
)
WORDS = ("--path", ".", "--seeds", "2", "--only", "mirror-absent", "--only", "mirror-read")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin of backends that end the process in one of their cases, or at their import."""
    folder = tmp_path_factory.mktemp("ends")
    entries = "\n".join(f"{name} = ends_caps:{name.upper()}" for name in NAMES)
    info = folder / "ends-1.0.dist-info"
    for file, text in {
        info / "METADATA": "Metadata-Version: 2.1\nName: ends\nVersion: 1.0\n",
        info / "entry_points.txt": f"[backend_caps.backends]\n{entries}\n",
        folder / "ends_caps.py": CAPS,
        folder / "ends.py": BACKENDS,
        folder / "ends_at_once.py": "import ctypes\nctypes.string_at(0)\n",
    }.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path) -> subprocess.CompletedProcess[str]:
    """A segmentation fault, written in each format."""
    files = [word for ending in ("md", "sarif", "xml") for word in ("--also", f"check.{ending}")]
    return _check(folder, "segv", *WORDS, "--format", "json", *files)


def _check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backend_caps", "check", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_segmentation_fault_is_a_finding(ran: subprocess.CompletedProcess[str]) -> None:
    """It has case, seed, the signal, the backend's line and the command; the status is 1."""
    (finding,) = CheckDocument.model_validate_json(ran.stdout).findings

    assert ran.returncode == 1
    assert finding.what == "ended the process by SIGSEGV (Segmentation fault)"
    assert (finding.case, finding.seed) == (CASE, 1)
    assert (finding.file, finding.line) == ("ends.py", LINE)
    assert finding.replay.startswith(f"backend-caps check segv --case '{CASE}'")


def test_other_checks_go_on(ran: subprocess.CompletedProcess[str]) -> None:
    """The check has the cases before; the next one ran; lines that went with it are untold."""
    document = CheckDocument.model_validate_json(ran.stdout)

    absent, read = document.checks
    assert (absent.status, len(absent.cases), absent.cases[-1]) == ("failed", 3, CASE)
    assert read.reason is not None
    assert document.lines is None
    assert "warning: the backend ended the process by SIGSEGV" in ran.stderr


def test_every_format_holds_it(ran: subprocess.CompletedProcess[str], folder: Path) -> None:
    """What people and CI systems read is whole, and has the fault."""
    told = "ended the process by SIGSEGV"

    log = json.loads((folder / "check.sarif").read_text("utf-8"))
    root = ET.parse(folder / "check.xml").getroot()  # noqa: S314 - our own

    assert ran.returncode == 1
    assert [told in each["message"]["text"] for each in log["runs"][0]["results"]] == [True]
    assert [told in each.get("message", "") for each in root.iter("failure")] == [True]
    assert told in (folder / "check.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        pytest.param("abort", "ended the process by SIGABRT (Aborted)", id="abort"),
        pytest.param("exit", "ended the process with exit status 0", id="exit"),
    ],
)
def test_other_ends_are_findings_too(name: str, told: str, folder: Path) -> None:
    """A case alone is reported as one among others is."""
    finished = _check(folder, name, "--path", ".", "--case", CASE, "--format", "json")

    document = CheckDocument.model_validate_json(finished.stdout)
    assert finished.returncode == 1
    assert [own.what for own in document.findings] == [told]


@pytest.mark.slow
def test_native_code_that_does_not_end_is_a_finding(folder: Path) -> None:
    """Its process is ended from outside, a new one goes on, and the finding has the line."""
    words = ("--case", CASE, "--case-deadline", "1", "--format", "json")

    finished = _check(folder, "keeps", "--path", ".", *words)

    (finding,) = CheckDocument.model_validate_json(finished.stdout).findings
    assert (finished.returncode, finding.what) == (1, "did not end within 1 s")
    assert (finding.file, finding.line) == ("ends.py", KEEPS_LINE)
    assert "warning: the backend did not end, and its process was ended" in finished.stderr


def test_end_before_a_case_is_an_error(folder: Path) -> None:
    """Nothing could be checked: the status is 2, with the line that did it."""
    finished = _check(folder, "import", *WORDS)

    assert (finished.returncode, finished.stdout) == (2, "")
    assert "ended the process by SIGSEGV (Segmentation fault), before a case ran" in finished.stderr
    assert 'ends_at_once.py", line 2' in finished.stderr


@axis(
    ("number", "status"),
    [
        pytest.param(signal.SIGINT, 1, id="interrupt"),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, id="terminate"),
    ],
)
def test_signal_that_people_send_ends_both(number: int, status: int, folder: Path) -> None:
    """It is no finding: the command ends as it did with one process."""
    (folder / "began").unlink(missing_ok=True)
    words = [sys.executable, "-m", "backend_caps", "check", "slow", *WORDS]
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not (folder / "began").exists():
            time.sleep(0.05)

        os.kill(process.pid, number)
        out, _ = process.communicate(timeout=20)

    assert (process.returncode, out) == (status, b"")
