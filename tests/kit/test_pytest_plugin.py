"""`pytest --backend-caps`, as the author of a plugin runs it: in a project of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cases import axis

CAPS = """\
from backend_caps import Capabilities, Declaration, OneOf

LIAR = Declaration(
    capabilities=Capabilities(
        page_sizes=OneOf({1}), head_sizes=OneOf({16}), dtypes={"float32"},
        needs_cpu_seq_lens=False, max_context_len_known=True,
    ),
    implementation="liar_backend:Liar",
)
WRONG = LIAR.model_copy(update={"implementation": "liar_backend:Wrong"})
RAISES = LIAR.model_copy(update={"implementation": "liar_backend:Raises"})
"""
ENTRIES = "[backend_caps.backends]\n" + "\n".join(
    f"{name} = liar_caps:{name.upper()}" for name in ("liar", "wrong", "raises")
)
BACKEND = """\
import warnings
from backend_caps_torch_native import TorchPadded

class Liar(TorchPadded):
    def init_forward_metadata(self, batch):
        warnings.warn("slow")
        if batch.batch_size == 1:
            assert batch.seq_lens_sum >= 0
        super().init_forward_metadata(batch)

class Wrong(TorchPadded):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs) + 1

class Raises(TorchPadded):
    def init_forward_metadata(self, batch):
        raise RuntimeError("no kernel")
"""
SETTINGS = """\
[pytest]
backend_caps = liar
addopts = --strict-markers --strict-config --import-mode=importlib
filterwarnings = error
testpaths = tests
"""
ONLY = ("--backend-caps-only", "mirror-absent", "--backend-caps-only", "mirror-bound")
FEW = (*ONLY, "--backend-caps-seeds", "2")
CASE = "backend-caps::liar::mirror-absent::{},float32,page-1,head-16x4:2@eager#{}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin that lies about requests that are alone, with a test of its own."""
    folder = tmp_path_factory.mktemp("plugin")
    info = folder / "liar-1.0.dist-info"
    for file, text in {
        info / "METADATA": "Metadata-Version: 2.1\nName: liar\nVersion: 1.0\n",
        info / "entry_points.txt": ENTRIES,
        folder / "pytest.ini": "[pytest]\n",  # else pytest looks for settings in the folders above
        folder / "liar_caps.py": CAPS,
        folder / "liar_backend.py": BACKEND,
        folder / "tests" / "test_own.py": "def test_own():\n    pass\n",
    }.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture(scope="module")
def ran(project: Path) -> subprocess.CompletedProcess[str]:
    """All claims, and the project's own test, each test on a line."""
    return _pytest(project, "--backend-caps", "liar", *FEW, "-v", "-p", "no:randomly")


def test_each_case_is_a_test(ran: subprocess.CompletedProcess[str]) -> None:
    """A test's name is the backend, the check and the case; the project's own test runs too."""
    lines = [line.split() for line in ran.stdout.splitlines() if line.endswith("%]")]
    results = {line[0]: line[1] for line in lines}

    assert results["tests/test_own.py::test_own"] == "PASSED"
    assert results[CASE.format("decode", 0)] == "FAILED"
    verified = CASE.format("verify", 1).partition("head-")[0]
    assert {own for name, own in results.items() if name.startswith(verified)} == {"PASSED"}
    assert ran.returncode == 1


def test_failure_is_short(ran: subprocess.CompletedProcess[str]) -> None:
    """It says which claim, what was seen, the plugin's line and the command; nothing of the kit."""
    title = f"_ {CASE.format('decode', 0)} _"
    lines = ran.stdout.splitlines()
    (first,) = [at for at, line in enumerate(lines) if line.strip("_ ") in title and "::" in line]

    told = lines[first + 1 : first + 5]
    assert told[0] == "does not hold: host_seq_lens"
    assert "TypeError" in told[1]
    assert told[2].endswith("liar_backend.py:8")
    assert told[3] == (
        "replay: backend-caps check liar --case "
        "'mirror-absent/decode,float32,page-1,head-16x4:2@eager#0'"
    )
    assert "backend_caps/kit" not in ran.stdout


def test_check_that_does_not_apply_is_skipped(ran: subprocess.CompletedProcess[str]) -> None:
    """It is one test, with the reason why it does not apply."""
    (skipped,) = [line for line in ran.stdout.splitlines() if "mirror-bound::not-checked" in line]

    assert " SKIPPED (" in skipped


def test_header_says_what_is_checked(ran: subprocess.CompletedProcess[str]) -> None:
    """Which backend, and where."""
    assert "backend-caps: checks liar on sim" in ran.stdout.splitlines()


@pytest.mark.slow
def test_tests_are_chosen_by_their_names(project: Path) -> None:
    """`-k` sees the check and the forward, and pytest-xdist runs what is left."""
    ran = _pytest(project, "--backend-caps", "liar", *FEW, "-k", "decode", "-n", "2", "-q")

    assert ran.stdout.splitlines()[-1].startswith("1 failed, 1 passed in ")


@pytest.mark.slow
def test_settings_name_backends_too(project: Path) -> None:
    """A project's settings ask for them where no tests are named on the command line."""
    settings = project / "settings.ini"
    settings.write_text(SETTINGS)

    every = _pytest(project, "-c", settings.name, *FEW, "-q", "-n", "2", "--rootdir", ".")
    own = _pytest(project, "-c", settings.name, *FEW, "-q", "--rootdir", ".", "tests/test_own.py")

    assert " failed, " in every.stdout.splitlines()[-1]
    assert own.stdout.splitlines()[-1].startswith("1 passed in ")


@pytest.mark.slow
def test_tests_behind_a_failed_check_are_skipped(project: Path) -> None:
    """They say nothing then, and say why; shuffled tests get their order back."""
    words = ("--backend-caps-only", "numerics", "--backend-caps-only", "serving")

    ran = _pytest(project, "--backend-caps", "wrong", *words, "--backend-caps-seeds", "1", "-v")

    tests = [line for line in ran.stdout.splitlines() if "::wrong::" in line and "%]" in line]
    checks = [line.split("::")[2] for line in tests]
    behind = [line for line in tests if "::serving::" in line]
    assert len(behind) > 0
    assert checks == sorted(checks)
    assert [own for own in behind if "(not checked: numerics failed)" not in own] == []


@pytest.mark.slow
def test_check_without_an_answer_is_not_green(project: Path) -> None:
    """Where every case is blocked, and skipped for it, the session fails, in many processes too."""
    words = ("--backend-caps-only", "mirror-absent", "--backend-caps-seeds", "1", "-n", "2")

    ran = _pytest(project, "--backend-caps", "raises", *words)

    told = "ERROR backend-caps::raises::mirror-absent: no case has an answer: the run to compare"
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED
    assert " failed" not in ran.stdout.splitlines()[-1]
    assert told in ran.stdout


@axis("workers", ["0", "2"])
def test_unknown_backend_is_reported(workers: str, project: Path) -> None:
    """One that is not declared ends the run with what is; in many processes too."""
    ran = _pytest(project, "--backend-caps", "lier", "-n", workers, "-q")

    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no backend 'lier' is declared; declared: " in ran.stderr
    assert "Did you mean 'liar'?" in ran.stderr


def test_plugin_alone_loads_nothing(project: Path) -> None:
    """Where no backend is named, pytest loads neither torch nor pydantic for it."""
    code = (
        "import sys, pytest\n"
        "pytest.main(['-q', '-p', 'no:cacheprovider', 'tests'])\n"
        "loaded = {'torch', 'pydantic', 'backend_caps.pytest_plugin'}\n"
        "print(sorted(loaded & set(sys.modules)))"
    )

    ran = _python(project, "-c", code)

    assert ran.stdout.splitlines()[-1] == "['backend_caps.pytest_plugin']"


def _pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    options = ("-p", "no:cacheprovider", "-p", "no:cov")
    return _python(folder, "-m", "pytest", *options, *words)


def _python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this Python where the plugin is installed."""
    environ: Mapping[str, str] = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
