"""What is read from a YAML file, and what is wrong with it by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.errors import BackendCapsError
from backend_caps.resolution.errors import leaves_of
from backend_caps.settings.settings import Settings
from backend_caps.settings.sources import SettingsError


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "facts: {head_sizes: 128}",
            "s.yaml:1: there is no setting 'facts.head_sizes'; expected one of: device, "
            "compute_capability, dtype, kv_cache_dtype, head_size, page_size, attention_arch, "
            "context_length, rocm. Did you mean 'head_size'?",
            id="misspelled fact",
        ),
        pytest.param(
            "\nfrobnicate: 1",
            "s.yaml:2: there is no setting 'frobnicate'; expected one of: engine, source, rules, "
            "policy, plugins, path, discovery-deadline, require-evidence, agreement-deadline, "
            "lock, device, format, verbose, facts, server. Take it out.",
            id="key that is near to none",
        ),
        pytest.param(
            "policy: off",
            "s.yaml:1: policy is False; expected 'strict', 'warn' or 'quiet'. Correct the value.",
            id="word that YAML takes for a switch",
        ),
        pytest.param(
            "rules: sglang-0.5.14",
            "s.yaml:1: rules is 'sglang-0.5.14'; expected 'sglang-0.5.13', 'sglang-0.5.23' "
            "or 'backend-caps-1'. Correct the value.",
            id="engine version that nobody knows",
        ),
        pytest.param(
            "agreement-deadline: 0",
            "s.yaml:1: agreement-deadline is 0; expected greater than 0. Correct the value.",
            id="deadline without time",
        ),
        pytest.param(
            "discovery-deadline: .nan",
            "s.yaml:1: discovery-deadline is nan; expected a number of seconds. Correct the value.",
            id="deadline that is no number",
        ),
        pytest.param(
            "plugins: acme",
            "s.yaml:1: plugins is 'acme'; expected a list, such as [acme]. Correct the value.",
            id="one name for a list",
        ),
        pytest.param(
            "lock: 3",
            "s.yaml:1: lock is 3; expected a path. Correct the value.",
            id="number for a path",
        ),
        pytest.param(
            "device: ''",
            "s.yaml:1: device is ''; expected a name. Correct the value.",
            id="blank name",
        ),
        pytest.param(
            "facts: [dtype]",
            "s.yaml:1: facts is ['dtype']; expected a mapping of names to values. Correct the "
            "value.",
            id="list for a section of facts",
        ),
        pytest.param(
            "server: fast",
            "s.yaml:1: server is 'fast'; expected a mapping of names to values. Correct the value.",
            id="word for a section of flags",
        ),
        pytest.param(
            "server:\n  atention-backend: fa3",
            "s.yaml:2: --atention-backend is no flag of this engine, and looks like "
            "--attention-backend. Write --attention-backend, or leave it out.",
            id="misspelled flag",
        ),
        pytest.param(
            "require-evidence: true\nrequire_evidence: true",
            "s.yaml:2: 'require_evidence' is given again, after line 1; expected each key once. "
            "Keep one of them.",
            id="one key in two spellings",
        ),
        pytest.param(
            "server:\n  x: [{a: 1,\n    a: 2}]",
            "s.yaml:3: 'a' is given again, after line 2; expected each key once. Keep one of them.",
            id="key again deep inside",
        ),
        pytest.param(
            "? [a, b]\n: 1",
            "s.yaml:1: there is no setting 'a list'; expected one of: engine, source, rules, "
            "policy, plugins, path, discovery-deadline, require-evidence, agreement-deadline, "
            "lock, device, format, verbose, facts, server. Take it out.",
            id="key that is no text",
        ),
    ],
)
def test_fault_is_told(tmp_path: Path, text: str, message: str) -> None:
    """What is wrong with a key is told with its line, its value and what was expected."""
    file = tmp_path / "s.yaml"
    file.write_text(text)

    told = _told(file)

    assert told == [message]


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
