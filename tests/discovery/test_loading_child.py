"""The code that runs a plugin's, one entry at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backend_caps.discovery.loading_child import Channel, read
from backend_caps.discovery.process import Answer, Work
from backend_caps.discovery.scan import BACKENDS, RULES
from backend_caps.resolution.rules import Rule
from tests.discovery.conftest import DECLARES

RULE = """\
from backend_caps.capability.facts import Given
from backend_caps.capability.vocabulary import Capabilities
from backend_caps.resolution.rules import Rule

def rule(name):
    given = Given(enable_two_batch_overlap=True)
    return Rule(name=name, given=given, forces=Capabilities(needs_cpu_seq_lens=True), reason="so")

"""
Importable = Callable[[str], str]


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Importable:
    """Write the source of a module that this process can import; its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = tmp_path.name
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param("rule('a')", ["a"], id="one"),
        pytest.param("[rule('a'), rule('b')]", ["a", "b"], id="several"),
        pytest.param("()", [], id="none"),
    ],
)
def test_read_sends_rules_one_by_one(
    importable: Importable, rules: str, expected: list[str]
) -> None:
    """The group of rules takes one or a sequence."""
    module = importable(f"{RULE}RULES = {rules}")

    answer = read(RULES, f"{module}:RULES")

    names = [Rule.model_validate_json(text).name for text in answer.documents]
    assert (names, answer.fault) == (expected, "")


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        pytest.param("{rule('a')}", "'set'", id="a-set"),
        pytest.param("[rule('a'), 3]", "'list' of 'Rule', 'int'", id="not-all-rules"),
    ],
)
def test_read_refuses_what_are_no_rules(importable: Importable, rules: str, said: str) -> None:
    """One member that is no rule makes the whole no rules."""
    module = importable(f"{RULE}RULES = {rules}")

    answer = read(RULES, f"{module}:RULES")

    assert (answer.fault, answer.detail) == ("wrong-type", said)


NO_TEXT = "class E(Exception):\n    def __str__(self): raise self\nraise E"
NEWER_MEMBER = "from backend_caps import GraphMetadata\nGraphMetadata.NEWER"
NEWER_NAME = "from backend_caps.capability.vocabulary import Newer"


@pytest.mark.parametrize(
    ("source", "fault", "said"),
    [
        pytest.param("def f(", "raises", "SyntaxError: '(' was never closed ", id="syntax-error"),
        pytest.param("OTHER = 1", "missing-attribute", "DECLARATION", id="missing-attribute"),
        pytest.param("raise SystemExit", "exits", "calls sys.exit(None)", id="system-exit"),
        pytest.param(NO_TEXT, "raises", "E: (its text cannot be shown) at ", id="text-that-raises"),
        pytest.param(NEWER_MEMBER, "schema", "NEWER at ", id="member-of-a-later-release"),
        pytest.param(NEWER_NAME, "schema", "cannot import name 'Newer' from 'b", id="later-name"),
        pytest.param("import backend_caps.newer", "schema", "No module named", id="later-module"),
    ],
)
def test_read_tells_what_went_wrong(
    importable: Importable, source: str, fault: str, said: str
) -> None:
    """Every way to fail has a code and a sentence."""
    module = importable(source)

    answer = read(BACKENDS, f"{module}:DECLARATION")

    assert answer.fault == fault
    assert answer.detail.startswith(said)


@pytest.mark.parametrize("name", ["null_alone", "null_inside.caps"])
def test_read_names_the_file_of_a_source_with_a_null_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Python says neither the file nor the line of such a source; the module's file is named."""
    file = tmp_path / f"{name.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    file.write_text("\0")
    monkeypatch.syspath_prepend(tmp_path)

    answer = read(BACKENDS, f"{name}:DECLARATION")

    assert answer.detail.endswith(f"cannot contain null bytes in {file}")


@pytest.mark.parametrize("value", ["no_such:D", "no_such.caps:D"])
def test_read_tells_a_module_that_is_not_there(value: str) -> None:
    """The entry's own module, or a package it is in, is missing: not one that it imports."""
    answer = read(BACKENDS, value)

    assert (answer.fault, answer.detail) == ("missing-module", "no_such")


def test_read_names_no_file_of_a_module_without_a_name() -> None:
    """No file belongs to it, so the error stands alone."""
    answer = read(BACKENDS, ":DECLARATION")

    assert (answer.fault, answer.detail) == ("raises", "ValueError: Empty module name")


def test_read_tells_the_line_that_raised(importable: Importable) -> None:
    """The line is the plugin's own, not one of the machinery's."""
    module = importable("\ndef f():\n    raise ValueError('x')\n\nf()\n")

    answer = read(BACKENDS, f"{module}:DECLARATION")

    assert answer.detail == f"ValueError: x at {sys.path[0]}/{module}.py:3"


def test_read_tells_no_line_where_none_is_the_plugins(importable: Importable) -> None:
    """A fault in the declaration itself may have no line in the plugin."""
    module = importable(
        "from backend_caps.capability.declaration import Declaration\n"
        "DECLARATION = Declaration.model_construct(capabilities=object())\n"
    )

    answer = read(BACKENDS, f"{module}:DECLARATION")

    assert answer.fault == "raises"
    assert " at " not in answer.detail


MAIN = (
    "import json, sys; from backend_caps.discovery.loading_child import main; "
    "main(json.load(sys.stdin), int(sys.argv[1]))"
)


def said(folder: Path, work: Work) -> list[Answer]:
    """Let a process do some work; what it says."""
    with (folder / "said").open("wb") as results, (folder / "printed").open("wb") as printed:
        subprocess.run(
            [sys.executable, "-c", MAIN, str(results.fileno())],
            input=json.dumps(work).encode(),
            pass_fds=(results.fileno(),),
            stdout=printed,
            check=True,
        )
    return [Answer.from_line(line) for line in (folder / "said").read_bytes().splitlines()]


def test_main_stops_after_an_entry_that_loads_torch(tmp_path: Path) -> None:
    """Torch stays loaded, so the next entry is left to another process."""
    for name, source in (("torch", ""), ("good", DECLARES), ("heavy", f"import torch\n{DECLARES}")):
        (tmp_path / f"{name}.py").write_text(source)
    entries = [(BACKENDS, f"{name}:DECLARATION") for name in ("good", "heavy", "good")]
    work = Work(path=[str(tmp_path), *sys.path], entries=entries, deadline_s=30)

    answers = said(tmp_path, work)

    assert [(answer.is_done, answer.loaded_torch, answer.is_last) for answer in answers] == [
        (False, False, False),
        (True, False, False),
        (False, False, False),
        (True, True, True),
    ]


def test_main_ends_after_the_last_entry(tmp_path: Path) -> None:
    """Without entries nothing is said."""
    assert said(tmp_path, Work(path=sys.path, entries=[], deadline_s=30)) == []


@pytest.mark.parametrize(
    ("process", "expected"),
    [
        pytest.param(os.getpid, 1, id="the-process-itself"),
        pytest.param(os.getppid, 0, id="a-fork-of-it"),
    ],
)
def test_channel_is_silent_in_a_fork(
    tmp_path: Path, process: Callable[[], int], expected: int
) -> None:
    """A plugin that forks has two processes at work, of which one answers."""
    sent = tmp_path / "sent"
    with sent.open("wb") as results, (tmp_path / "output").open("wb") as output:
        Channel(results=results, output=output.fileno(), process=process()).send(Answer())

    assert len(sent.read_bytes().splitlines()) == expected
