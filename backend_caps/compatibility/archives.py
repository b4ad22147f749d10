"""Source distributions and revisions of checkouts, unpacked as far as they are read."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, ClassVar

from backend_caps.errors import CodedError

_READ = (".py", ".toml", "PKG-INFO", "entry_points.txt", "requires.txt")
"""The ends of the names of files that are read."""
_LARGEST_BYTES = 2 * 10**9
"""The most bytes of an unpacked archive: vLLM 0.33.0 has 130 MB."""


class ArchiveError(CodedError):
    """A source distribution or a revision of a checkout cannot be read."""

    codes: ClassVar = {
        "archive-damaged": "a source distribution is no tar archive, is damaged, or is too large",
        "revision-not-found": "git is not installed, the folder is no checkout, or it has no such "
        "revision",
    }


@contextmanager
def unpacked(
    source: Path, revision: str | None = None, *, package: str | None = None
) -> Iterator[Path]:
    """Yield a path that can be read: a folder or a wheel as it is, another source unpacked.

    Args:
        source: a folder, a wheel or a source distribution.
        revision: of the checkout that `source` is: a tag, a branch or a commit.
        package: whose Python files alone are unpacked; an engine has as many in its tests.

    Raises:
        ArchiveError: the source distribution or the revision cannot be read.
    """
    if revision is None and not source.name.endswith((".tar.gz", ".tgz")):
        yield source
        return
    with TemporaryDirectory() as folder:
        if revision is None:
            with source.open("rb") as file:
                root = _unpack(file, "r|gz", Path(folder), str(source), package)
        else:
            archive = io.BytesIO(_archived(source, revision))
            root = _unpack(archive, "r|", Path(folder), f"{source}@{revision}", package)
        yield root


def _is_read(name: str, package: str | None) -> bool:
    if package is not None and name.endswith(".py"):
        return package in name.split("/")[1:3]  # its folder, in `python` or `src` too
    return name.endswith(_READ)


def _archived(checkout: Path, revision: str) -> bytes:
    """Return what `git archive` writes of a revision."""
    command = ["git", "-C", str(checkout), "archive", f"--prefix={checkout.resolve().name}/"]
    try:
        done = subprocess.run([*command, revision], check=True, capture_output=True)  # noqa: S603 - no shell
    except (OSError, subprocess.CalledProcessError) as error:
        said = error.stderr.decode(errors="replace") if hasattr(error, "stderr") else str(error)
        raise ArchiveError(
            "revision-not-found",
            f"revision {revision!r} of {checkout} cannot be read: {said.strip()}; expected a tag, "
            "a branch or a commit of a checkout. Fetch it, or name another.",
        ) from error
    return done.stdout


def _unpack(file: IO[bytes], mode: str, folder: Path, name: str, package: str | None) -> Path:
    """Unpack the files that are read, and return the archive's first folder."""
    try:
        with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
            for member in archive:
                if member.offset_data + member.size > _LARGEST_BYTES:
                    raise tarfile.ReadError(f"it has more than {_LARGEST_BYTES:,} bytes")
                if member.isfile() and _is_read(member.name, package):
                    archive.extract(member, folder, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ArchiveError(
            "archive-damaged",
            f"{name} cannot be unpacked: {error}; expected a source distribution (.tar.gz). "
            "Download it again, or name another.",
        ) from error
    roots = [*folder.iterdir()]
    return roots[0] if len(roots) == 1 else folder
