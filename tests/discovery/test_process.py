"""The process that reads declarations, and the faults and lines that it finds in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel, ValidationError

from backend_caps import Capabilities, Declaration, Given, Part, When
from backend_caps.discovery.diagnosis import schema_fault
from backend_caps.discovery.loading_child import source_line
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

    assert subprocess.call([sys.executable, "-c", fails, str(site.root)]) == 7
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


class Own(BaseModel):
    """A model of a plugin's own."""

    size: int


def raised(make: Callable[[], object]) -> BaseException:
    """Return what making it raises."""
    with pytest.raises((ValidationError, AttributeError, ImportError)) as caught:
        make()
    return caught.value


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        pytest.param(
            lambda: Capabilities.model_validate({"zzz": 1}),
            "Capabilities has no field 'zzz'",
            id="unknown-field",
        ),
        pytest.param(
            lambda: Capabilities.model_validate({"needs_cpu_seq_lens": 1, "zzz": 1}),
            "Capabilities.needs_cpu_seq_lens is 1: Input should be a valid boolean; "
            "Capabilities has no field 'zzz'",
            id="two-fields",
        ),
        pytest.param(
            lambda: When(given=Given(tp_size={1}), capabilities=Capabilities(), reason="x"),
            "When(tp_size = 1) states no capability; name at least one that differs there",
            id="a-model-of-its-own",
        ),
        pytest.param(
            lambda: Part("a", phazes=()),  # type: ignore[call-arg]
            "Part has no field 'phazes'",
            id="a-dataclass",
        ),
        pytest.param(
            lambda: Declaration.model_validate({"implementation": "x"}),
            "Declaration.implementation is 'x': Input should be 'x:Name'",
            id="a-value",
        ),
        pytest.param(
            lambda: Declaration.model_validate({"api": "x" * 100}),
            f"Declaration.api is '{'x' * 59}...: Input should be 1",
            id="a-long-value",
        ),
    ],
)
def test_schema_fault_tells_each_field_once(make: Callable[[], object], expected: str) -> None:
    """A validation error is one line, a union's many complaints one."""
    assert schema_fault(raised(make)) == expected


def test_schema_fault_is_none_for_a_model_of_the_plugins_own() -> None:
    """A plugin may use pydantic for itself."""
    assert schema_fault(raised(lambda: Own.model_validate({"size": "x"}))) is None


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ImportError("x", name="other"), id="import"),
        pytest.param(AttributeError("x", name="x", obj=int), id="attribute"),
        pytest.param(ValueError("x"), id="another"),
    ],
)
def test_schema_fault_is_none_for_what_is_not_ours(error: BaseException) -> None:
    """What a plugin asks others for is no matter of the contract."""
    assert schema_fault(error) is None


def module_of(source: str, tmp_path: Path) -> ModuleType:
    """Make a module that says it comes from a file with this source."""
    file = tmp_path / "caps.py"
    file.write_text(source)
    module = ModuleType("caps")
    module.__file__ = str(file)
    return module


@pytest.mark.parametrize(
    ("source", "attribute", "line"),
    [
        pytest.param("A = 1\n", "A", 1, id="assignment"),
        pytest.param("A = (\n1\n)\n", "A", 1, id="over-several-lines"),
        pytest.param("A = 1\nA = 2\n", "A", 2, id="the-last-binding"),
        pytest.param("A: int = 1\n", "A", 1, id="annotated"),
        pytest.param("B, A = 1, 2\n", "A", 1, id="unpacked"),
        pytest.param("try:\n  A = 1\nexcept E:\n  A = 2\n", "A", 4, id="in-a-branch"),
        pytest.param("def f():\n  A = 1\nA = 2\n", "A", 3, id="not-in-a-function"),
        pytest.param("from b import A\n", "A", 1, id="import"),
        pytest.param("from b import B as A\n", "A", 1, id="renamed-import"),
        pytest.param("class Box:\n  A = 1\n", "Box.A", 2, id="in-a-class"),
        pytest.param("class Box(Base):\n  B = 1\n", "Box.A", 1, id="inherited-in-a-class"),
        pytest.param("def A(): ...\n", "A", 1, id="function"),
    ],
)
def test_source_line_finds_the_last_binding(
    tmp_path: Path, source: str, attribute: str, line: int
) -> None:
    """The line is where the module binds the name that counts."""
    module = module_of(source, tmp_path)

    assert source_line(module, attribute) == f"{module.__file__}:{line}"


def test_source_line_names_the_file_where_the_source_does_not_say(tmp_path: Path) -> None:
    """A name that is bound by no statement has a file and no line."""
    module = module_of("globals()['A'] = 1\n", tmp_path)

    assert source_line(module, "A") == module.__file__


def test_source_line_is_none_for_a_module_without_a_file() -> None:
    """A built-in module is nowhere."""
    assert source_line(sys, "path") is None


def test_source_line_reads_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in a zip has lines too."""
    archive = tmp_path / "caps.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("zipped_caps.py", "\nA = 1\n")
    monkeypatch.syspath_prepend(archive)

    assert source_line(import_module("zipped_caps"), "A") == f"{archive}/zipped_caps.py:2"
