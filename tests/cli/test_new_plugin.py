"""Plugins that the command line writes."""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backend_caps import HostSeqLens, discover
from backend_caps.capability.provenance import Status
from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.cli.new_plugin import LONGEST, project_files
from tests.cases import cases_of
from tests.cli.conftest import CASES, process
from tests.machine import ROOT, git

NAME = "acme_attention"
WRITTEN = f"""\
Wrote a plugin for the backend '{NAME}' into PLACE:

  README.md
  {NAME}/__init__.py
  {NAME}/backend.py
  {NAME}/py.typed
  {NAME}_caps.py
  pyproject.toml
  tests/test_backend.py
  tests/test_declaration.py

It passes its own tests as it stands. What to do next:

  cd PLACE
  pip install --editable . 'backend-caps[kit]' pytest
  pytest
  backend-caps report
  backend-caps generate -- --attention-backend {NAME}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of a new plugin."""
    folder = tmp_path_factory.mktemp("new") / NAME
    assert _new_plugin(NAME, folder).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def site(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the plugin is installed in."""
    folder = tmp_path_factory.mktemp("site")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target")
    installed = _run("pip", "install", *options, folder, project, cwd=project)
    assert (installed.returncode, installed.stderr) == (0, "")
    return folder


def test_compiled_files_of_the_template_are_not_copied() -> None:
    """A compiler may have run over the template, where it is installed or worked on."""
    compileall.compile_dir(ROOT / "backend_caps" / "template", quiet=1)

    assert [name for name in project_files(NAME) if "__pycache__" in name] == []


@pytest.mark.slow
def test_new_plugin_passes_its_own_tests(project: Path, site: Path) -> None:
    """What is written is a correct backend, found where it is installed, and tests that say so."""
    tested = _run("pytest", "--quiet", cwd=project, site=site)

    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout


@pytest.mark.slow
def test_new_plugin_serves_the_engine(project: Path, site: Path) -> None:
    """In the engine it gives the tokens of a backend that is known to be right."""
    options = ("--prompts", "5", "--chunked-prefill-size", "16", "--format", "json")
    flags = ("--page-size", "4", "--enable-mixed-chunk", "--attention-backend")
    words = ("backend_caps", "generate", *options)

    right = _run(*words, "--", *flags, "torch_native", cwd=project)
    ran = _run(*words, "--path", site, "--", *flags, NAME, cwd=project)

    outputs = [json.loads(each.stdout)["outputs"] for each in (ran, right)]
    assert outputs[0] == outputs[1]


def test_new_plugin_is_in_the_report(site: Path) -> None:
    """The report of where it is installed shows the backend, and nothing wrong with it."""
    result = CliRunner().invoke(cli, ["report", "--path", str(site), "--format", "json"])

    found = discover([site])[NAME]
    assert result.exit_code == 0
    assert f'"name": "{NAME}"' in result.stdout
    assert (found.status, found.problems) == (Status.OK, ())


def test_new_plugin_states_every_capability(site: Path) -> None:
    """Nothing of its declaration is left to the worst value: an author sees all there is."""
    declaration = discover([site])[NAME].declaration
    assert declaration is not None
    capabilities = declaration.capabilities

    unsaid = {*type(capabilities).model_fields} - {*capabilities.stated(), "needs_cpu_seq_lens"}

    assert unsaid == set()
    assert capabilities.host_seq_lens is HostSeqLens.EXACT


@pytest.mark.parametrize("name", ["a", "acme_2d", "x" * LONGEST, "zz_torch_flash_attention_z"])
@pytest.mark.parametrize("words", [("check",), ("format", "--check")])
def test_new_plugin_is_clean_under_ruff(name: str, words: Sequence[str], tmp_path: Path) -> None:
    """Short or long, a name leaves the code formatted and without a finding."""
    _new_plugin(name, tmp_path / name)

    checked = _run("ruff", *words, "--no-cache", cwd=tmp_path / name)

    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_new_plugin_is_clean_under_mypy(project: Path) -> None:
    """Types hold, strictly, in the backend and in its tests."""
    cache = ROOT / ".cache" / "mypy-of-new-plugin"

    checked = _run("mypy", "--cache-dir", cache, cwd=project)

    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong", "caught_by"),
    [
        pytest.param(
            "acme_attention/backend.py",
            "attn_mask=everything.tril(len(keys) - len(q))",
            "attn_mask=everything",
            "numerics",
            id="sees later tokens",
        ),
        pytest.param(
            "acme_attention_caps.py",
            "host_seq_lens=HostSeqLens.EXACT",
            "host_seq_lens=HostSeqLens.NONE",
            "mirror-absent",
            id="declares less than it reads",
        ),
        pytest.param(
            "acme_attention_caps.py",
            "graph_replay=frozenset()",
            "graph_replay=frozenset(__import__('backend_caps').BatchKind)",
            "replay",
            id="declares a replay of host values",
        ),
        pytest.param(
            "acme_attention/backend.py",
            "        return output.flatten(1)",
            "        return output.flatten(1) + 0 * batch.seq_lens.max().item()",
            "sync-free-prepare",
            id="waits for the device",
        ),
    ],
)
def test_tests_of_new_plugin_find_a_fault(
    file: str, right: str, wrong: str, caught_by: str, tmp_path: Path
) -> None:
    """A backend that does not do what it should, or declares, is failed by the check for that."""
    folder = tmp_path / NAME
    _new_plugin(NAME, folder)
    _install_in_place(folder)
    source = folder / file
    text = source.read_text("utf-8")
    source.write_text(text.replace(right, wrong), "utf-8")

    options = ("--exitfirst", "--quiet", "--backend-caps-only", caught_by, "-k", caught_by)
    tested = _run("pytest", *options, cwd=folder, site=folder)

    assert right in text
    assert f"FAILED backend-caps::{NAME}::{caught_by}::" in tested.stdout


@pytest.mark.parametrize("place", ["new", "several/new/folders", "with a space"])
def test_command_says_what_was_written_and_what_is_next(place: str, tmp_path: Path) -> None:
    """All that was written is named, and commands that can be pasted lead on."""
    folder = tmp_path / place

    result = _new_plugin(NAME, folder)

    quoted = f"'{folder}'" if " " in place else str(folder)
    told = WRITTEN.replace("into PLACE", f"into {folder}").replace("PLACE", quoted)
    assert (result.exit_code, result.stdout) == (0, told)
    assert {*project_files(NAME)} == {*_texts(folder)}


def test_command_writes_into_a_folder_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a folder is named, the project goes into a new one here, or one that is empty."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()

    assert CliRunner().invoke(cli, ["new-plugin", NAME]).exit_code == 0
    assert _texts(tmp_path / NAME) == project_files(NAME)


def test_server_flags_are_refused(tmp_path: Path) -> None:
    """What a server is started with changes nothing of a plugin, and is not passed over."""
    command = ["new-plugin", "--into", str(tmp_path / "new"), NAME]

    result = CliRunner().invoke(cli, command, obj=Invocation(server_flags=("--page-size", "16")))

    assert result.exit_code == 2
    assert "nothing goes after --." in result.stderr
    assert not (tmp_path / "new").exists()


def test_template_holds_nothing_but_the_project() -> None:
    """What linters and compilers leave beside the template is not part of a plugin."""
    written = {f"backend_caps/template/{path}" for path in project_files("my_attention")}

    assert written == {*git("ls-files", "backend_caps/template").splitlines()}


@pytest.mark.parametrize(("name", "problem"), cases_of(CASES / "plugin_names.txt"))
def test_name_that_will_not_do_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    """A name that cannot be imported, or that something has, is refused with one that would do."""
    result = _new_plugin(name, tmp_path / "new")

    problem = problem.replace("VERSION", version("backend-caps"))
    assert result.stderr == f"error: no plugin can be named {name!r}: {problem}\n"
    assert result.exit_code == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("held", "place", "problem"),
    [
        pytest.param(["README.md"], "", "it holds README.md", id="a file of the template"),
        pytest.param([".git", "a", "b", "c"], "", "it holds a and 2 more", id="others"),
        pytest.param(["file"], "file", "it is a file", id="a file"),
        pytest.param(["file"], "file/new", "Not a directory", id="below a file"),
    ],
)
def test_what_stands_in_the_way_is_left_alone(
    held: Sequence[str], place: str, problem: str, tmp_path: Path
) -> None:
    """Nothing is written beside what is there, and nothing of it is lost; the sentence has it."""
    for name in held:
        (tmp_path / name).write_text("mine")

    result = _new_plugin(NAME, tmp_path / place)

    assert result.stderr == (
        f"error: folder '{tmp_path / place}' cannot take a new plugin: {problem}; a folder with "
        "room that is empty but for .git, or none, was expected. Name another with --into.\n"
    )
    assert result.exit_code == 2
    assert _texts(tmp_path) == dict.fromkeys(held, "mine")


def test_folder_that_holds_a_repository_alone_is_written_into(tmp_path: Path) -> None:
    """An author may make the repository first; it is left as it is."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("mine")

    assert _new_plugin(NAME, tmp_path).exit_code == 0
    assert _texts(tmp_path) == {**project_files(NAME), ".git/HEAD": "mine"}


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("there", id="into a folder that is there"),
        pytest.param("there/new/folders", id="into new ones"),
    ],
)
def test_nothing_is_left_where_there_is_no_room(place: str, tmp_path: Path) -> None:
    """What was written before the disk was full is taken back, new folders too."""
    (tmp_path / "there" / ".git").mkdir(parents=True)
    # -B: Python takes a compiled module that was cut off for written, and it would stay for others.
    small_files = 'ulimit -f 1; exec "$0" -B -m backend_caps new-plugin --into "$1" "$2"'

    untraced = {name: own for name, own in os.environ.items() if not name.startswith("COV")}
    words = ("/bin/sh", "-c", small_files, sys.executable, tmp_path / place, NAME)
    done = process(*words, env=untraced)

    assert done.stderr.endswith("--into.\n")
    assert "cannot take a new plugin: File too large; a folder with room" in done.stderr
    assert (done.returncode, done.stdout) == (2, "")
    assert [*tmp_path.rglob("*")] == [tmp_path / "there", tmp_path / "there" / ".git"]


def _new_plugin(name: str, folder: Path) -> Result:
    return CliRunner().invoke(cli, ["new-plugin", "--into", str(folder), name])


def _install_in_place(folder: Path) -> None:
    """Let a project be found where it lies, as an editable installation is."""
    info = folder / f"{NAME}-0.1.0.dist-info"
    info.mkdir()
    entry = f"[backend_caps.backends]\n{NAME} = {NAME}_caps:DECLARATION\n"
    (info / "entry_points.txt").write_text(entry)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0.1.0\n")


def _run(
    module: str, *words: str | Path, cwd: Path, site: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a module of this Python in an environment of its own."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    own = {} if site is None else {"PYTHONPATH": str(site)}
    return process(sys.executable, "-m", module, *words, cwd=cwd, env={**environ, **own})


def _texts(folder: Path) -> dict[str, str]:
    """Read every file below a folder."""
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_text("utf-8") for file in found}
