"""What is read from a YAML file, and what is wrong with it by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.errors import BackendCapsError
from backend_caps.resolution.errors import leaves_of
from backend_caps.settings.settings import Settings
from backend_caps.settings.sources import SettingsError
from tests.cases import cases_of


def _told(file: Path) -> list[str]:
    """List what is said of a file, without its folder."""
    with pytest.raises((BackendCapsError, ExceptionGroup)) as raised:
        Settings.load(file, environ={})
    assert isinstance(raised.value, BackendCapsError | ExceptionGroup)
    return [str(fault).replace(f"{file.parent}/", "") for fault in leaves_of(raised.value)]


MANY = """\
polcy: strict
require-evidence: "yes"
# a comment counts as a line
path:
  - .
  - nowhere
facts:
  head_sizes: 128
  dtype: 16
server:
  page-size: many
  atention-backend: triton
policy: strickt
rules: sglang-0.5.14
rules: sglang-0.5.13
"""


def test_every_fault_is_told_with_its_line(tmp_path: Path) -> None:
    """One error lists all faults, sorted by line, each with what was expected."""
    file = tmp_path / "s.yaml"
    file.write_text(MANY)

    told = _told(file)

    places = [each.partition(": ")[0] for each in told]
    lines = (1, 2, 6, 8, 9, 11, 12, 13, 15)
    assert places == [f"s.yaml:{line}" for line in lines]


@pytest.mark.parametrize(("text", "message"), cases_of(Path(__file__).parent / "faults.txt"))
def test_fault_is_told(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong with a key is told with its line, its value and what was expected."""
    file = tmp_path / "s.yaml"
    file.write_text(text)

    assert _told(file) == [message]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(b"- policy", "it holds a list", id="list"),
        pytest.param(b"strict", "it holds the text 'strict'", id="text"),
        pytest.param(b"a: 1\n---\nb: 2", "expected a single document", id="two documents"),
        pytest.param(b"a: [", "line 1, column 5", id="no YAML"),
        pytest.param(b"\xff\xfe\x00", "", id="no text"),
        pytest.param(b"policy: !!python/name:os.system x", "could not determine", id="tag"),
        pytest.param(b"server: &a {x: *a}", "recursive", id="mapping within itself"),
        pytest.param(
            b"facts: &a {dtype: bfloat16}\nserver:\n  <<: *a",
            "line 3 takes another mapping over (<<)",
            id="merged mapping",
        ),
    ],
)
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, text: bytes, cause: str) -> None:
    """A file that holds anything but one YAML mapping is an error that says what it holds."""
    file = tmp_path / "s.yaml"
    file.write_bytes(text)

    with pytest.raises(SettingsError) as raised:
        Settings.load(file, environ={})

    assert (raised.value.code, cause in str(raised.value)) == ("file", True)


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file that was named has to be there."""
    with pytest.raises(SettingsError, match="No such file or directory"):
        Settings.load(tmp_path / "none.yaml", environ={})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("# policy: strict\n", id="comments"),
        pytest.param("{}", id="empty mapping"),
        pytest.param("facts:\n#  dtype: bfloat16\nserver:\n", id="empty sections"),
        pytest.param("server: {page-size: null}", id="flag that is not given"),
    ],
)
def test_file_that_says_nothing_changes_nothing(tmp_path: Path, text: str) -> None:
    """What is left out, or only commented, is the default."""
    file = tmp_path / "s.yaml"
    file.write_text(text)

    settings = Settings.load(file, environ={})

    assert settings == Settings.load(environ={})


def test_relative_path_begins_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a file means the same wherever the file is read from."""
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    for each in (folder, elsewhere):
        each.mkdir()
    (tmp_path / "s.yaml").write_text("path: [site]\nlock: caps.lock\n")
    monkeypatch.chdir(elsewhere)

    settings = Settings.load("../s.yaml", environ={})

    assert [each.resolve() for each in settings.path] == [folder]
    assert settings.lock is not None
    assert settings.lock.resolve() == tmp_path / "caps.lock"
