from __future__ import annotations

import logging
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch

from backend_caps.kit.observation import DistinctLines, FileLines, LineCounter, muffled, own_files
from backend_caps.simulator import simulate

PACKAGE = {
    "__init__.py": "from lined.other import OTHER\n",
    "backend.py": """\
from lined.paging import slots
from . import sizes
from .deep.kernel import run

class Backend:
    limit = 3

    def forward(self, n):
        if n > self.limit:
            n = 0
            n += 1
        return run(slots(n))

def unused():
    return sizes.LARGE
""",
    "paging.py": "def slots(n):\n    return n\n",
    "sizes.py": "LARGE = 7\n",
    "deep/kernel.py": """\
import lined.deep
import json

def run(n):
    return n

async def later():
    return 1
""",
    "deep/__init__.py": "",
    "other.py": "OTHER = 1\n\ndef nothing():\n    return 2\n",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose backend imports some of its modules, and not all."""
    for name, text in PACKAGE.items():
        file = tmp_path / "lined" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "lone.py").write_text("def alone():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [own for own in sys.modules if own.partition(".")[0] in {"lined", "lone"}]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_own_files_are_those_that_the_module_imports(package: Path) -> None:
    """Of the package, what the module reaches, by any way of naming it; nothing is imported."""
    files = own_files("lined.backend")

    names = [file.relative_to(package / "lined").as_posix() for file in files]
    assert names == ["backend.py", "deep/__init__.py", "deep/kernel.py", "paging.py", "sizes.py"]
    assert "lined" not in sys.modules


def test_own_file_of_a_lone_module_is_its_own(package: Path) -> None:
    """A module without a package is one file; one that is not there has none."""
    assert own_files("lone") == [package / "lone.py"]
    assert own_files("nowhere") == []
    assert own_files("sys") == []


def test_lines_that_ran_are_counted(package: Path) -> None:
    """Of functions' lines, those that ran within the block are split from the others."""
    with LineCounter("lined.backend:Backend") as counter:
        from lined.backend import Backend  # type: ignore[import-not-found] # noqa: PLC0415

        Backend().forward(2)

    found = {own.file.relative_to(package).as_posix(): own for own in counter.files}
    assert set(found) == {"lined/backend.py", "lined/deep/kernel.py", "lined/paging.py"}
    assert found["lined/backend.py"].lines == (9, 10, 11, 12, 15)
    assert found["lined/backend.py"].missing == ("10-11", "15")
    assert found["lined/paging.py"].missed == ()
    assert found["lined/deep/kernel.py"].missing == ("8",)


def test_lines_of_nothing_are_none(package: Path) -> None:
    """What cannot be found has no lines, and nothing is traced."""
    trace = sys.gettrace()

    with LineCounter("nowhere:Backend") as counter:
        assert sys.gettrace() is trace

    assert package.exists()
    assert counter.files == []


KERNELS = """\
import torch
import triton
import triton.language as tl

@triton.jit
def halved(x):
    half = x * 0.5
    return half

@triton.jit
def scale(out, x, flag, BLOCK: tl.constexpr, IS_HALF: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(x + place)
    if IS_HALF:
        value = halved(value)
    else:
        value = value * 3
    if tl.load(flag) > 0:
        value = -value
    if tl.load(flag) > 1:
        return
    tl.store(out + place, value)

@torch.library.custom_op("lined_kernels::added", mutates_args=("x",))
def added(x: torch.Tensor, by: float) -> None:
    if by > 9:
        by = 9.0
    x.add_(by)

class Backend:
    def forward(self, x, flag):
        scale[(1,)](x, x, flag, BLOCK=8, IS_HALF=True)
        added(x, 1.0)
        if flag.device.type == "cpu":
            x.zero_()
        return x
"""


def test_lines_of_kernels_and_operators_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated device runs both: a kernel's blocks, and Python in an operator's body."""
    (tmp_path / "lined_kernels.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    module = import_module("lined_kernels")

    with simulate(), LineCounter("lined_kernels:Backend") as counter:
        tracer = sys.gettrace()
        flag = torch.zeros(1, dtype=torch.int32, device="sim")
        result = module.Backend().forward(torch.ones(8, device="sim"), flag).cpu()
        assert sys.gettrace() is tracer

    assert result.tolist() == [1.5] * 8
    (file,) = counter.files
    assert file.missing == ("17", "19", "27", "35")


@pytest.mark.parametrize(
    ("missed", "missing"),
    [
        pytest.param((), (), id="nothing"),
        pytest.param((5,), ("5",), id="one"),
        pytest.param((3, 5, 9), ("3-9",), id="all"),
        pytest.param((3, 9), ("3", "9"), id="the ends"),
        pytest.param((5, 9), ("5-9",), id="a stretch over lines without statements"),
    ],
)
def test_missing_lines_are_ranges(missed: tuple[int, ...], missing: tuple[str, ...]) -> None:
    """Lines that follow one another, as statements do, are one range."""
    assert FileLines(file=Path("a.py"), lines=(3, 5, 9), missed=missed).missing == missing


def test_each_line_is_kept_once() -> None:
    """Lines that differ in numbers alone are one, shown as it was first said, with a count."""
    said = DistinctLines()

    said.write("took 3 ms\nslow")
    said.write("ly\n\n  took 14 ms  \n")
    said.write("unended")

    assert said.writable()
    assert said.lines == {"took 3 ms": 2, "slowly": 1, "unended": 1}


def test_what_is_printed_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output and error are silent within the block, and as before behind it."""
    with muffled() as said:
        sys.stdout.write("to output\n")
        sys.stderr.write("to error\n")
    sys.stdout.write("behind\n")

    assert said.lines == {"to output": 1, "to error": 1}
    assert capsys.readouterr() == ("behind\n", "")


def test_warning_is_kept_and_is_no_error() -> None:
    """Where warnings are errors, one within the block is a line with its place."""
    with muffled() as said:
        warnings.warn("slow path", stacklevel=1)

    (line,) = said.lines
    assert line.endswith(": UserWarning: slow path")
    assert line.startswith(__file__)


def test_log_to_standard_error_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """A handler that writes to standard error already is led away, and back."""
    log, handler = logging.getLogger("muffled.child"), logging.StreamHandler(sys.stderr)
    log.addHandler(handler)

    with muffled() as said:
        log.warning("within")
    log.warning("behind")

    log.removeHandler(handler)
    assert said.lines == {"within": 1}
    assert capsys.readouterr().err == "behind\n"


def test_log_elsewhere_is_left_alone() -> None:
    """A handler that writes to a stream of its own still does."""
    elsewhere = DistinctLines()
    log, handler = logging.getLogger("muffled.elsewhere"), logging.StreamHandler(elsewhere)
    log.addHandler(handler)

    with muffled() as said:
        log.warning("within")

    log.removeHandler(handler)
    assert (elsewhere.lines, said.lines) == ({"within": 1}, {})
