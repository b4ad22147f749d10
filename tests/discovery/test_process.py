"""The process that reads declarations, and what is left of it: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backend_caps.discovery.process import (
    Answer,
    Child,
    Search,
    Work,
    interpreter_flags,
    start_early,
)
from tests.discovery.conftest import DECLARES, Site


def answers(site: Site, *values: str) -> list[Answer]:
    """Let a process read some entries, and end by itself; what it says."""
    work = Work(
        path=[str(site.root), *sys.path],
        entries=[("backend_caps.backends", value) for value in values],
        deadline_s=30,
    )
    child = Child(work["path"], executable=sys.executable)
    child.give(work)
    said = []
    while line := child.line(30):
        said.append(Answer.from_line(line))
    child.status()
    child.close()
    return said


def is_running(process: int) -> bool:
    """Tell whether a process is there and not a zombie."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_child_says_when_it_begins_and_what_it_read(site: Site) -> None:
    """Each entry is two lines: begun, and done."""
    site.module("good", DECLARES)

    said = answers(site, "good:DECLARATION", "absent:DECLARATION")

    assert [answer.is_done for answer in said] == [False, True, False, True]
    assert [answer.fault for answer in said] == ["", "", "", "missing-module"]
    assert said[1].declared_at == f"{site.root}/good.py:3"


def test_child_is_as_isolated_as_its_parent() -> None:
    """A parent that ignores the environment has a child that does."""
    assert interpreter_flags(isolated=1) == ("-I", "-u")
    assert interpreter_flags(isolated=0) == ("-P", "-u")


def test_child_ignores_what_is_planted_in_the_working_directory(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module beside a server's scripts does not stand in for a dependency."""
    site.module("good", DECLARES)
    (tmp_path / "pydantic.py").write_text("raise AssertionError('planted')")
    monkeypatch.chdir(tmp_path)

    said = answers(site, "good:DECLARATION")

    assert [answer.fault for answer in said] == ["", ""]


def test_child_survives_a_pydantic_plugin_of_anybody(site: Site) -> None:
    """Pydantic's own plugins are switched off: a bad one would end every declaration."""
    site.module("good", DECLARES)
    site.install("evil-1.dist-info", entry_points="[pydantic]\nevil = no_such_module:plugin\n")

    said = answers(site, "good:DECLARATION")

    assert [answer.fault for answer in said] == ["", ""]


def test_interrupted_discovery_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    """Ctrl-C ends what a plugin runs, and no temporary file stays."""
    told, temporary = tmp_path / "process", tmp_path / "temporary"
    temporary.mkdir()
    site.plugin(
        "slow",
        f"import os, pathlib, time\npathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n",
    )
    parent = subprocess.Popen(
        [sys.executable, "-m", "backend_caps", "report", "--path", str(site.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(temporary)},
        text=True,
    )
    while not (told.exists() and told.read_text()):
        time.sleep(0.01)

    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=30)

    assert (parent.returncode, errors.split()) == (1, ["Aborted!"])
    assert not is_running(int(told.read_text()))
    assert list(temporary.iterdir()) == []


def test_discovery_that_is_dropped_ends_with_its_parent(site: Site, tmp_path: Path) -> None:
    """A parent that fails between start and results leaves no process behind."""
    told = tmp_path / "process"
    site.plugin(
        "slow",
        f"import os, pathlib, time\npathlib.Path({str(told)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(600)\n",
    )
    fails = (
        "import pathlib, sys, time\nfrom backend_caps.discovery.loading import begin\n"
        "loading = begin([sys.argv[1]], environ={})\n"
        f"told = pathlib.Path({str(told)!r})\n"
        "while not (told.exists() and told.read_text()): time.sleep(0.01)\n"
        "raise SystemExit(7)\n"
    )

    status = subprocess.call([sys.executable, "-c", fails, str(site.root)])

    assert status == 7
    assert not is_running(int(told.read_text()))


def test_early_start_that_fails_leaves_the_telling_to_the_next(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    """Where no process starts before the scan, the one after it says why."""
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    search = Search.of_folders([site.root])

    where, child = start_early(search)

    assert where is search
    assert child is None
