"""Build the atlas: read the releases that it lacks, and note since when each value holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import ClassVar, TypeAlias

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version
from pydantic import ValidationError

from backend_caps.atlas.documents import ReleaseDocument
from backend_caps.atlas.history import with_history
from backend_caps.atlas.release import read_release, reader_digest
from backend_caps.compatibility.archives import unpacked
from backend_caps.compatibility.metadata import metadata_of
from backend_caps.compatibility.releases import Release, ReleaseError, Releases
from backend_caps.engines.read import ENGINES
from backend_caps.errors import BackendCapsError, CodedError
from backend_caps.report.document import json_text

RELEASES = (
    "sglang>=0.5.13",
    "vllm>=0.12",
    "tpu-inference>=0.20",
    "vllm-ascend>=0.11",
    "vllm-kunlun",
    "vllm-musa",
    "vllm-omni>=0.20",
    "vllm-rbln>=0.10",
    "vllm-spyre>=1.5",
)
"""The releases that are read well. Before SGLang 0.5.13 lengths on the host had no flag, and before
vLLM 0.12 its registry was another one. Behind the engines, plugins of vLLM."""
Progress: TypeAlias = Callable[[str, int, int], None]
"""Is given the release that was read, how many are done, and how many there are to read."""


class AtlasError(CodedError):
    """The atlas cannot be built, or its data cannot be read."""

    codes: ClassVar = {
        "atlas-data-unreadable": "a file of the atlas' data is damaged, or of another schema",
        "atlas-empty": "a folder holds no data of the atlas",
        "atlas-not-written": "the folder of the atlas cannot be written",
        "atlas-releases-misspelled": "what names releases is no range of versions of an engine",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build did."""

    read: Sequence[str]
    """Releases that were read, such as `vllm 0.33.0`."""
    kept: Sequence[str]
    """Releases that were there, read by this reader."""


@dataclass(frozen=True, slots=True)
class ReleaseStore:
    """The folder of the atlas' data: `<distribution>/<version>.json`."""

    folder: Path

    def path(self, distribution: str, version: Version | str) -> Path:
        """Return the file of a release."""
        return self.folder / distribution / f"{version}.json"

    def load(self, distribution: str) -> list[ReleaseDocument]:
        """Read the releases of an engine or a plugin, the oldest first.

        Raises:
            AtlasError: a file is damaged, or of another schema.
        """
        paths = (self.folder / distribution).glob("*.json")
        return [_loaded(path) for path in sorted(paths, key=lambda path: Version(path.stem))]

    def distributions(self) -> list[str]:
        """List the distributions that have releases here."""
        return sorted({path.parent.name for path in self.folder.glob("*/*.json")})

    def store(self, release: ReleaseDocument) -> None:
        """Write a release's document; a process that is ended meanwhile leaves no half of one.

        Raises:
            AtlasError: the folder cannot be written.
        """
        path = self.path(release.distribution, release.version)
        text = f"{json_text(release, indent=1)}\n"
        try:
            if path.is_file() and path.read_text("utf-8") == text:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_path = path.with_suffix(f".{os.getpid()}")
            partial_path.write_text(text, "utf-8")
            partial_path.replace(path)
        except OSError as error:
            raise AtlasError(
                "atlas-not-written",
                f"{path} cannot be written: {error.strerror or error}; expected a folder with "
                "room. Name another, or make room: releases that are there are kept.",
            ) from error


def build(
    data: ReleaseStore,
    wanted: Sequence[str],
    releases: Releases,
    *,
    workers: int,
    progress: Progress,
) -> Built:
    """Read the releases that the data lacks, or that another reader read.

    What was read is kept when a build is ended, and the next one goes on from there.

    Args:
        data: where documents are kept.
        wanted: ranges of releases, such as `vllm>=0.20`.
        releases: where archives are found.
        workers: processes that read.
        progress: is called when a release has been read.

    Raises:
        AtlasError: a range is misspelled, or the folder cannot be written.
        ReleaseError, MissingExtraError: an archive cannot be had.
        ArchiveError, EngineError: an archive cannot be read.
    """
    ranges = [_requirement(each) for each in wanted]
    found = [(each.name, version) for each in ranges for version in releases.versions(each)]
    missing = [(name, version) for name, version in found if not _is_read(data, name, version)]
    for done, release in enumerate(_read_all(missing, releases, workers), start=1):
        data.store(release)
        progress(f"{release.distribution} {release.version}", done, len(missing))
    for name in sorted({each.name for each in ranges}):
        for release in with_history(data.load(name)):
            data.store(release)
    kept = [f"{name} {version}" for name, version in found if (name, version) not in missing]
    return Built(read=[f"{name} {version}" for name, version in missing], kept=kept)


def _read_all(
    missing: Sequence[tuple[str, Version]], releases: Releases, workers: int
) -> Iterator[ReleaseDocument]:
    """Read releases in other processes, in the order in which they are done."""
    one = partial(_read_one, releases)
    if workers == 1 or len(missing) == 1:
        yield from (one(name, version) for name, version in missing)
        return
    # Not forked: the bar of the progress is drawn by a thread.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        begun: list[Future[ReleaseDocument]] = [pool.submit(one, *each) for each in missing]
        try:
            for future in as_completed(begun):
                yield future.result()
        except BackendCapsError:
            pool.shutdown(cancel_futures=True)
            raise


def _read_one(releases: Releases, name: str, version: Version) -> ReleaseDocument:
    wanted = Requirement(f"{name}=={version}")
    if name in ENGINES:
        return read_release(releases.matching(wanted)[0])
    (plugin,) = replace(releases, prefers_wheels=True).matching(wanted)
    return read_release(plugin, _engine_of(plugin, releases))


def _engine_of(plugin: Release, releases: Releases) -> Release:
    """Choose the release of vLLM that a plugin is read with.

    It is the newest that the plugin's metadata takes; where it states none, the newest of the
    plugin's own minor version, which most plugins number themselves by; else the newest.
    """
    with unpacked(plugin.path) as folder:
        stated = metadata_of(folder).requires
    required = next(filter(None, map(_required_vllm, stated)), None)
    same = Requirement(f"vllm=={plugin.version.major}.{plugin.version.minor}.*")
    for wanted in filter(None, (required, same)):
        with suppress(ReleaseError):
            newest = releases.versions(wanted)[-1]
            return releases.matching(Requirement(f"vllm=={newest}"))[0]
    return releases.newest("vllm")


def _required_vllm(text: str) -> Requirement | None:
    """Return a requirement of certain releases of vLLM, without the name of a local build."""
    try:
        wanted = Requirement(re.sub(r"\+[\w.]+", "", text))
    except InvalidRequirement:
        return None
    return wanted if wanted.name == "vllm" and wanted.specifier and not wanted.marker else None


def _is_read(data: ReleaseStore, name: str, version: Version) -> bool:
    """Return whether a release's document is there, by this reader."""
    path = data.path(name, version)
    try:
        return path.is_file() and _loaded(path).reader == reader_digest()
    except AtlasError:
        return False  # damaged, or of an older schema: it is made anew


def _loaded(path: Path) -> ReleaseDocument:
    try:
        return ReleaseDocument.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise AtlasError(
            "atlas-data-unreadable",
            f"{path} is no data of the atlas: {str(error).splitlines()[0]}; expected a document "
            "of schema backend-caps/atlas-release@1. Build it again: backend-caps atlas build.",
        ) from error


def _requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise AtlasError(
            "atlas-releases-misspelled",
            f"{text!r} names no releases: {error}; expected such as 'vllm>=0.30,<0.34'.",
        ) from error
