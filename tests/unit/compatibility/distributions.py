"""Source distributions, wheels and checkouts of small packages, written out of texts."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.unit.engines.source.trees import bytes_of, write_folder

Texts = Mapping[str, str | bytes]


def write_sdist(folder: Path, name: str, texts: Texts) -> Path:
    """Write a source distribution; its files are in a folder of its name, as they have to be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in texts.items():
            member, data = tarfile.TarInfo(f"{name}/{file}"), bytes_of(text)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_wheel(folder: Path, name: str, texts: Texts) -> Path:
    """Write a wheel; its metadata state the name and version of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-py3-none-any.whl"
    package, _, version = name.partition("-")
    stated = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {f"{name}.dist-info/METADATA": stated, **texts}.items():
            archive.writestr(file, bytes_of(text))
    return path


def write_checkout(folder: Path, texts: Texts, *, tag: str) -> Path:
    """Commit files below a folder, a checkout from now on, and tag the commit."""
    write_folder(folder, texts)
    _git(folder, "init", "--quiet")
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "--message", tag)
    _git(folder, "tag", tag)
    return folder


def _git(folder: Path, *words: str) -> None:
    names = ("user.name=A", "user.email=a@example.com", "commit.gpgsign=false", "tag.gpgsign=false")
    settings = [word for name in names for word in ("-c", name)]
    subprocess.run(["git", "-C", str(folder), *settings, *words], check=True, capture_output=True)  # noqa: S607 - as installed
