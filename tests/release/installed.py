"""Installs what was built as users install it, into a fresh environment, and tries it there.

Nothing of the checkout is in reach: the home is empty, the folder is another, and the environment
holds the wheels alone, with what they require as `constraints.txt` pins it.

    python -m tests.release.installed FOLDER    tries the wheels in FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from tests.plugins.environments import PLUGINS, ROOT

_SHOWN = 6
"""How many of the last lines that a step printed are shown."""
_FETCHING = ("PIP_", "SSL_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
"""How the variables begin that say where packages are fetched; no other one is handed on."""
_ENTRY_POINTS = """
from importlib.metadata import distribution
for each in distribution({name!r}).entry_points:
    each.load()
    print(each.group, each.name, "is", each.value)
"""


class StepError(Exception):
    """A step failed; what it printed is the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command of the fresh environment, and why it is run."""

    claim: str
    words: tuple[str, ...]

    @classmethod
    def python(cls, claim: str, code: str) -> Step:
        """Run code by the environment's own Python."""
        return cls(claim=claim, words=("python", "-P", "-c", code))

    @classmethod
    def program(cls, claim: str, *words: str) -> Step:
        """Run the program that was installed."""
        return cls(claim=claim, words=("backend-caps", *words))


def steps(wheels: Sequence[Path]) -> Iterator[Step]:
    """List what is tried, in order."""
    pinned = ("--constraint", str(ROOT / "constraints.txt"))
    install = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    yield Step(claim="the wheels install", words=(*install, *pinned, *map(str, wheels)))
    yield Step(claim="they agree with one another", words=("python", "-m", "pip", "check"))
    yield Step.python(
        "importing loads no torch",
        "import sys, backend_caps as own; assert 'torch' not in sys.modules; print(own.__file__)",
    )
    for plugin in PLUGINS:
        yield Step.python(
            f"{plugin.distribution}'s entry points load",
            _ENTRY_POINTS.format(name=plugin.distribution),
        )
    yield Step.program("every backend is reported", "report", "--policy", "strict")
    yield Step.program("a backend's claims hold", "check", "torch_native", "--quick")
    yield Step.program("a plugin is written", "new-plugin", "acme_attention")
    yield Step(claim="it installs", words=(*install, *pinned, "./acme_attention", "--no-deps"))
    yield Step.program("its claims hold", "check", "acme_attention", "--quick")


def run(step: Step, home: Path, environment: Path) -> str:
    """Run a step; what it printed.

    Raises:
        StepError: it ended with another status than 0.
    """
    program, *words = step.words
    environ = {
        **{name: own for name, own in os.environ.items() if name.upper().startswith(_FETCHING)},
        "HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{environment}/bin:/usr/bin:/bin",
    }
    done = subprocess.run(
        [str(environment / "bin" / program), *words],
        cwd=home,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise StepError(f"{' '.join(step.words)}\n{done.stdout}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Try the wheels of a folder, and say what was done; the status of the process."""
    wheels = sorted(Path(arguments[0]).resolve().glob("*.whl"))
    with tempfile.TemporaryDirectory() as folder:
        home, environment = Path(folder, "home"), Path(folder, "environment")
        home.mkdir()
        venv.create(environment, with_pip=True, symlinks=True)
        for step in steps(wheels):
            began_s = perf_counter()
            try:
                printed = run(step, home, environment)
            except StepError as error:
                sys.stdout.write(f"not so: {step.claim}\n$ {error}\n")
                return 1
            sys.stdout.write(f"{perf_counter() - began_s:6.1f} s  {step.claim}\n")
            for line in printed.strip().splitlines()[-_SHOWN:]:
                sys.stdout.write(f"           {line}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
