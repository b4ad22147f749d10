"""Fresh virtual environments, into which pip installs what this repository builds.

Packages of others are borrowed from the environment that runs the tests, so that nothing is
fetched: torch alone has hundreds of megabytes. Ours are not among them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import files, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OURS = "backend_caps"
"""How the names begin of all that is built here, in every spelling that an installer leaves."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One folder of `plugins/`."""

    folder: Path

    @property
    def project(self) -> Mapping[str, object]:
        """The `[project]` of its pyproject.toml."""
        text = (self.folder / "pyproject.toml").read_text("utf-8")
        project: dict[str, object] = tomllib.loads(text)["project"]
        return project

    @property
    def distribution(self) -> str:
        """What it is installed as."""
        return str(self.project["name"])

    @property
    def backends(self) -> frozenset[str]:
        """The names that its entry points declare; a plugin of an engine has none."""
        groups = self.project["entry-points"]
        assert isinstance(groups, dict), "a plugin has entry points"
        return frozenset(groups.get("backend_caps.backends", {}))


PLUGINS = [Plugin(file.parent) for file in sorted(ROOT.glob("plugins/*/pyproject.toml"))]


def build_wheels(folder: Path) -> None:
    """Build the package and every plugin as their users get them."""
    for project in (ROOT, *(plugin.folder for plugin in PLUGINS)):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
        run(*command, "--directory", str(folder), cwd=project)


def borrow_packages(folder: Path) -> None:
    """Link every installed package but ours; files that change the path stay behind too."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        is_ours = entry.name.lstrip("_").removeprefix("editable_impl_").startswith(OURS)
        if not is_ours and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)


def borrow_required(folder: Path, distribution: str) -> None:
    """Link what a distribution requires without an extra, directly or not, and nothing else."""
    folder.mkdir()
    wanted, linked = _required(distribution), set[str]()
    while wanted:
        name = wanted.pop()
        if name not in linked:
            linked.add(name)
            wanted |= _required(name)
            for entry in {file.parts[0] for file in files(name) or ()} - {"..", "__pycache__"}:
                (folder / entry).symlink_to(Path(sysconfig.get_path("purelib"), entry))


def _required(distribution: str) -> set[str]:
    found = map(Requirement, requires(distribution) or ())
    return {own.name for own in found if own.marker is None or own.marker.evaluate({"extra": ""})}


def run(*words: str, cwd: Path | None = None) -> str:
    """Run a command that succeeds; what it printed."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, env=_ENVIRON)
    assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
    return done.stdout


_ENVIRON = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that was made for one test."""

    folder: Path
    wheels: Path

    @classmethod
    def fresh(cls, folder: Path, *, wheels: Path, borrowed: Path) -> Environment:
        """Make one without anything of ours."""
        venv.create(folder, symlinks=True)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text(f"{borrowed}\n")
        return cls(folder, wheels)

    def install(self, *distributions: str) -> None:
        """Install by pip, which finds what they require, or fails."""
        options = ("--quiet", "--no-compile", "--no-index", "--no-build-isolation")
        self._pip("install", *options, f"--find-links={self.wheels}", *distributions)

    def uninstall(self, distribution: str) -> None:
        """Uninstall by pip, and nothing else."""
        self._pip("uninstall", "--quiet", "--yes", distribution)

    def backends(self) -> Mapping[str, str]:
        """Read off `backend-caps report` which backends there are, and whose they are."""
        report = json.loads(self.backend_caps("report", "--policy", "strict", "--format", "json"))
        assert report["problems"] == []
        assert {backend["status"] for backend in report["backends"]} <= {"ok"}
        return {backend["name"]: backend["distribution"] for backend in report["backends"]}

    def backend_caps(self, *words: str) -> str:
        """Run the program that was installed; what it printed."""
        return run(str(self.folder / "bin" / "backend-caps"), *words, cwd=self.folder)

    def refused(self, *words: str) -> str:
        """Run the program with words that it refuses; what it printed as its error."""
        program = str(self.folder / "bin" / "backend-caps")
        done = subprocess.run(
            (program, *words), cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        return done.stderr

    def python(self, code: str) -> str:
        """Run code by the environment's own Python; what it printed."""
        return run(str(self.folder / "bin" / "python"), "-P", "-c", code, cwd=self.folder)

    def _pip(self, *words: str) -> None:
        python = str(self.folder / "bin" / "python")
        run(sys.executable, "-m", "pip", "--python", python, *words)
