"""Breaks of one line on the way from an entry point to a step, each with the test that sees it.

`python -m tests.hops` copies the tree, makes one break after the other in the copy, and runs the
test that has to fail; it exits with 1 where a test passes all the same. Before, all the tests are
run unbroken, and have to pass. `--find TESTS...` runs these tests instead of the named ones, and
prints what fails first: for a break whose test is not known yet.

The breaks were chosen from the code, before the tests were looked at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click

ROOT = Path(__file__).resolve().parents[1]
_COPIED = ("backend_caps", "tests", "plugins", "benchmarks", "conftest.py", "pyproject.toml")
_QUICKLY = ("-n", "0", "-q", "-x", "-p", "no:cacheprovider")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """One line, broken."""

    hop: str
    file: str
    """Under `backend_caps`."""
    line: str
    """As it stands there, without its indentation; where it occurs more than once, the first."""
    broken: str
    """What stands there instead."""
    test: str
    """What has to fail."""


_STORED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
BREAKS = tuple(Break(**own) for own in _STORED["break"])


def broken_text(text: str, own: Break) -> str:
    """Put the broken line in the place of the other, which stands there at least once.

    Where it stands more than once, the first is broken.
    """
    place = text.find(own.line)
    assert place >= 0, f"{own.file} has no line {own.line!r}: choose the break anew"
    return text[:place] + own.broken + text[place + len(own.line) :]


def main(words: Sequence[str]) -> int:
    """Run all breaks; return the exit status."""
    found = list(words[1:]) if words[:1] == ["--find"] else []
    with TemporaryDirectory(prefix="backend-caps-hops-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            _copy(ROOT / name, copy / name)
        if not found and (failed := _failing(copy, sorted({own.test for own in BREAKS}))):
            click.echo(f"unbroken, {failed} fails")
            return 1
        survived = [own for own in BREAKS if not _caught(copy, own, found)]
    click.echo(f"{len(BREAKS) - len(survived)} of {len(BREAKS)} breaks were caught")
    return 1 if survived else 0


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy2(source, target)


def _caught(copy: Path, own: Break, found: Sequence[str]) -> bool:
    path = copy / "backend_caps" / own.file
    text = path.read_text("utf-8")
    path.write_text(broken_text(text, own), "utf-8")
    try:
        failed = _failing(copy, found or [own.test])
    finally:
        path.write_text(text, "utf-8")
    click.echo(f"{own.hop:<22}{own.file:<36}{failed or 'SURVIVED'}")
    return failed is not None


def _failing(copy: Path, tests: Sequence[str]) -> str | None:
    """Run tests over the copy; return the first that fails."""
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", *_QUICKLY, *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    names = _FAILED.findall(done.stdout)
    assert names, f"pytest ended with {done.returncode}: {done.stdout}{done.stderr}"
    return str(names[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
