"""A reader of a page: a folder that is their home, a shell and a Python.

The shell stays where a command left it, as a reader's does who types one after the other.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
"""The checkout."""
_HOME = "/home/you"
_DRIVER = """
import contextlib, io, json, sys
namespace = {"__name__": "__main__"}
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            exec(compile(json.loads(line), "<page>", "exec"), namespace)
        except Exception as error:
            print(f"{type(error).__module__}.{type(error).__name__}: {error}")
    print(json.dumps(printed.getvalue()), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a reader has before the page begins."""

    checkout: Path
    """What pages show as a folder of the reader's home."""
    programs: Path
    """The programs of an environment, which come before all others."""
    variables: Mapping[str, str]
    """What else the environment says; where pip finds packages, above all."""
    is_set_up: bool = False
    """Whether all that `make` installs is there already, so that `make run` need only show it."""


OF_TESTS = Surroundings(
    checkout=ROOT,
    programs=Path(sys.executable).parent,
    variables={
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(ROOT / ".cache" / "wheels"),
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    },
    is_set_up=True,
)
"""Pip finds what it builds with in this environment, and the engines among what was fetched."""


class Reader:
    """One reader at work, within a `with` block.

    Args:
        folder: their home, where the page begins.
        surroundings: what is there already; by default what the tests run in.
    """

    def __init__(self, folder: Path, surroundings: Surroundings = OF_TESTS) -> None:
        self._folder = self._place = folder.resolve()
        self._surroundings = surroundings
        self._status = 0
        self._driver: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._driver is not None:
            self._driver.communicate()

    def _environment(self) -> dict[str, str]:
        """Name everything that a command sees.

        Each computes on one thread: more would wait for those of the tests beside it, spinning.
        """
        return {
            "PATH": f"{self._surroundings.programs}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._folder),
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            **self._surroundings.variables,
        }

    def write(self, name: str, text: str) -> None:
        """Write a file that the page shows."""
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")

    def python(self, code: str) -> str:
        """Run a block; the names that it binds stay."""
        driver = self._driver = self._driver or self._started()
        assert driver.stdin is not None, "it was started with a pipe"
        assert driver.stdout is not None, "it was started with a pipe"
        driver.stdin.write(json.dumps(code) + "\n")
        driver.stdin.flush()
        return self._shown(json.loads(driver.stdout.readline()))

    def _started(self) -> subprocess.Popen[str]:
        return subprocess.Popen(  # noqa: S603 - the environment's own Python
            [str(self._surroundings.programs / "python"), "-P", "-c", _DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env=self._environment(),
        )

    def transcript(self, text: str) -> str:
        """Run the commands of a block, and write them down with what they print."""
        return "".join(f"$ {command}\n{self.shell(command)}" for command in commands_of(text))

    def shell(self, command: str) -> str:
        """Run a command where the one before it left the shell; what is printed of it."""
        if command == "make run" and self._surroundings.is_set_up:
            return "".join(f"{line}\n{self._run(line, ROOT)}" for line in _made("run"))
        return self._run(command, self._place)

    def _run(self, command: str, folder: Path) -> str:
        command = command.removeprefix(".venv/bin/")
        with tempfile.NamedTemporaryFile("r") as place:
            leave = f"\nleft=$?; pwd > {place.name}; exit $left"
            done = subprocess.run(  # noqa: S603 - the page's own command
                ["/bin/bash", "-c", f"(exit {self._status}); {command}{leave}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                check=False,
                cwd=folder,
                env=self._environment(),
            )
            left = place.read().strip()
        self._status = done.returncode
        if folder == self._place and left:
            self._place = Path(left)
        return self._shown(done.stdout)

    def _shown(self, printed: str) -> str:
        """Write output as a page does: no blank lines at its ends, and nobody's own paths."""
        printed = printed.replace(str(self._folder), _HOME)
        printed = printed.replace(str(self._surroundings.checkout), f"{_HOME}/backend-caps")
        lines = "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n")
        return f"{lines}\n" if lines else ""


def commands_of(text: str) -> Iterator[str]:
    """List the commands of a block; one goes on while its lines end in a backslash."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line.removeprefix("$ ")
            while command.endswith("\\"):
                command += "\n" + next(lines)
            yield command


def _made(target: str) -> list[str]:
    """List our own commands that a target runs, once everything is installed."""
    told = subprocess.run(  # noqa: S603 - asks, and makes nothing
        ["/usr/bin/env", "-u", "MAKEFLAGS", "make", "--dry-run", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")
    return [shlex.join(shlex.split(line)) for line in told.splitlines() if "/backend-caps " in line]
