"""Which folders are searched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import backend_caps
from backend_caps.discovery.metadata import PathEntry
from backend_caps.discovery.process import Search, identity

SOURCE = str(Path(backend_caps.__file__).parents[1])
TELL = (
    f"import sys; sys.path.append({SOURCE!r}); from backend_caps.discovery.process import Search; "
    "search = Search.of_process(); print(search.unsearched, search.searched == search.imports)"
)


def run(arguments: list[str], folder: Path) -> str:
    """Run Python in a folder; what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("arguments", [["-c", TELL], ["-m", "tell"]], ids=["-c", "-m"])
def test_search_leaves_the_working_directory_out(tmp_path: Path, arguments: list[str]) -> None:
    """What `-c` and `-m` put first on the path by themselves is not searched."""
    (tmp_path / "tell.py").write_text(TELL)

    assert run(arguments, tmp_path) == f"{tmp_path} True"


def test_search_keeps_a_path_that_python_did_not_add_to(tmp_path: Path) -> None:
    """Under `-P` the first entry is somebody's choice, even if it is the working directory."""
    actual = run(
        ["-P", "-c", TELL.replace("append", f"insert(0, {str(tmp_path)!r}) or sys.path.append")],
        tmp_path,
    )

    assert actual == "None True"


def test_search_tells_of_a_working_directory_already_taken_off(tmp_path: Path) -> None:
    """The command line takes it off before its second import, and says so."""
    search = Search.of_process(str(tmp_path))

    assert search.unsearched == str(tmp_path)
    assert str(tmp_path) not in search.searched


def test_search_of_folders_imports_from_them_first(tmp_path: Path) -> None:
    """Folders that the caller names come before `sys.path`, and are the only ones searched."""
    search = Search.of_folders([tmp_path])

    assert search.searched == (str(tmp_path),)
    assert search.imports == (str(tmp_path), *Search.of_process().imports)


def test_search_survives_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    """A process whose working directory was deleted keeps the rest of its path."""
    gone = "import os; folder = os.getcwd(); os.rmdir(folder); " + TELL
    folder = tmp_path / "gone"
    folder.mkdir()

    actual = run(["-c", gone], folder)

    assert actual == "None True"


@pytest.mark.parametrize("path", ["/no/such/folder", "nul\0byte"])
def test_identity_of_what_is_not_there_is_none(path: str) -> None:
    """A path entry that is not there is none."""
    assert identity(path) is None


def test_identity_is_the_same_by_every_name(tmp_path: Path) -> None:
    """A folder is itself, by whatever path."""
    alias = tmp_path / "alias"
    alias.symlink_to(tmp_path)

    assert identity(str(alias)) == identity(os.fspath(tmp_path))


def test_place_that_cannot_be_listed_is_none() -> None:
    """A folder that vanished or is closed holds no metadata."""
    assert PathEntry.at("/no/such/folder") is None
