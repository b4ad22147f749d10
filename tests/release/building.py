"""Builds the wheel and the sdist of the package and of each plugin, in the same bytes every time.

What is built is a copy of what git knows, so that nothing that lies beside it comes along: the
tests take the checkout as it is now, a release what was committed last.
Each wheel is built of its sdist, as an installer builds it that finds no wheel.

    python -m tests.release.building FOLDER    builds the last commit into FOLDER
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import chdir
from hashlib import sha256
from pathlib import Path

from hatchling.build import build_sdist, build_wheel

from tests.machine import ROOT, git

_EPOCH = "SOURCE_DATE_EPOCH"
"""What builders take for the time of everything that they write."""


def tracked_files() -> list[str]:
    """List the checkout's files that git knows and that are there."""
    listed = git("ls-files", "-z").split("\0")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


def copy_checkout(folder: Path) -> None:
    """Copy what git knows of the checkout, as it is now, and nothing else."""
    for name in tracked_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)


def copy_commit(folder: Path) -> None:
    """Copy the last commit."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        git("archive", "--output", file.name, "HEAD")
        with tarfile.open(file.name) as archive:
            archive.extractall(folder, filter="data")


def epoch_of_commit() -> str:
    """Return the time of the last commit, in seconds as `SOURCE_DATE_EPOCH` has it."""
    return git("log", "-1", "--format=%ct").strip()


def projects_of(folder: Path) -> list[Path]:
    """List the folders of a checkout that are built: its own, and each plugin's."""
    return [folder, *(file.parent for file in sorted(folder.glob("plugins/*/pyproject.toml")))]


def build(checkout: Path, into: Path) -> None:
    """Build each project's sdist, and of it the wheel; the environment says of which time."""
    for project in projects_of(checkout):
        with chdir(project):
            sdist = into / build_sdist(str(into))
        with tempfile.TemporaryDirectory() as unpacked:
            with tarfile.open(sdist) as archive:
                archive.extractall(unpacked, filter="data")
            with chdir(Path(unpacked) / sdist.name.removesuffix(".tar.gz")):
                build_wheel(str(into))


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file that was built, by its name."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return {file.name: sha256(file.read_bytes()).hexdigest() for file in files}


def built(folder: Path) -> Iterator[Path]:
    """List the wheels and sdists in a folder."""
    yield from sorted(each for each in folder.iterdir() if each.suffix in {".whl", ".gz"})


def main(arguments: Sequence[str]) -> int:
    """Build the last commit anew, and tell the digests; the status of the process."""
    into = Path(arguments[0]).resolve()
    os.environ[_EPOCH] = epoch_of_commit()
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        copy_commit(Path(folder))
        build(Path(folder), into)
    for name, digest in digests(into).items():
        sys.stdout.write(f"{digest}  {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
