from __future__ import annotations

import sys
from pathlib import Path

import pytest

from backend_caps.kit.lines import FileLines, LineCounter, own_files

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
    """Of functions' lines, those that ran within the block are told from those that did not."""
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
    own = FileLines(file=Path("a.py"), lines=(3, 5, 9), missed=missed)

    assert own.missing == missing
