"""Releases of an engine: those in folders, and those that a package index has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from backend_caps.errors import CodedError
from backend_caps.extras import require_extra

if TYPE_CHECKING:
    from unearth import Package, PackageFinder

PYPI = "https://pypi.org/simple/"


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that downloads are kept in: of `XDG_CACHE_HOME`, or `~/.cache`."""
    stated = Path(environ.get("XDG_CACHE_HOME", ""))
    root = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return root / "backend-caps" / "releases"


class ReleaseError(CodedError):
    """A release of an engine is not in the folders, and cannot be downloaded."""

    codes: ClassVar = {
        "release-not-found": "neither the folders nor the index have a release that was named",
        "release-not-downloaded": "the package index cannot be reached, or a download fails",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A release of an engine."""

    package: str
    version: Version
    path: Path
    """A wheel or a source distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Releases:
    """Where releases come from."""

    folders: Sequence[Path]
    """Folders with wheels and source distributions."""
    cache: Path
    """The folder that downloads are put into; it is searched too."""
    index_url: str = PYPI
    is_offline: bool = False
    prefers_wheels: bool = False
    """Whether a wheel is taken before a source distribution, which may lack entry points."""

    def matching(self, wanted: Requirement) -> list[Release]:
        """Return the releases that a requirement takes, the oldest first.

        Raises:
            ReleaseError: there is none, or one cannot be downloaded.
            MissingExtraError: one has to be downloaded, and the extra `fits` is not installed.
        """
        found = self._found(wanted)
        package = canonicalize_name(wanted.name)
        return [
            each if isinstance(each, Release) else self._downloaded(package, version, each)
            for version, each in sorted(found.items())
        ]

    def versions(self, wanted: Requirement) -> list[Version]:
        """Return the versions that a requirement takes, the oldest first; nothing is downloaded.

        Raises:
            ReleaseError: there is none.
            MissingExtraError: the index has to be asked, and the extra `fits` is not installed.
        """
        return sorted(self._found(wanted))

    def _found(self, wanted: Requirement) -> dict[Version, Release | Package]:
        """Find what a requirement takes: in the folders, then in the index."""
        package = canonicalize_name(wanted.name)
        takes_candidates = _takes_candidates(wanted)
        local = {each.version: each for each in self._local(package)}
        found: dict[Version, Release | Package] = {
            version: each
            for version, each in local.items()
            if wanted.specifier.contains(version, takes_candidates)
        }
        if not self.is_offline and not (found and is_exact(wanted)):
            found = {**self._remote(wanted), **found}
        if not found:
            raise self._not_found(wanted, sorted(local))
        return found

    def newest(self, package: str) -> Release:
        """Return the newest release that is no pre-release.

        Raises:
            ReleaseError, MissingExtraError: as `matching` does.
        """
        versions = [each.version for each in self._local(package)]
        if not self.is_offline:
            versions += self._remote(Requirement(package))
        final = [each for each in versions if not each.is_prerelease]
        if not final:
            raise self._not_found(Requirement(package), [])
        return self.matching(Requirement(f"{package}=={max(final)}"))[0]

    def before(self, package: str, version: Version) -> list[Release]:
        """Return the releases in the folders that are older, the newest first."""
        older = [each for each in self._local(package) if each.version < version]
        return sorted(older, key=lambda each: each.version, reverse=True)

    def _local(self, package: str) -> Iterator[Release]:
        """List what is in the folders, the last of a version to be taken: of the first folder."""
        for folder in (self.cache, *reversed(self.folders)):
            for path in sorted(folder.iterdir(), key=self._rank) if folder.is_dir() else ():
                name, version = _named(path.name)
                if name == package and version is not None:
                    yield Release(package=package, version=version, path=path)

    def _rank(self, path: Path) -> tuple[bool, str]:
        """Rank a file among others of its release: the last is taken."""
        return (path.suffix == ".whl") is self.prefers_wheels, path.name

    def _remote(self, wanted: Requirement) -> dict[Version, Package]:
        """List what the index has; of each release the file of the preferred kind, if any."""
        found: dict[Version, Package] = {}
        finder = self._finder()
        try:
            matches = finder.find_matches(wanted, allow_prereleases=_takes_candidates(wanted))
            for each in matches:
                version = Version(each.version or "0")
                if version not in found or each.link.is_wheel is self.prefers_wheels:
                    found[version] = each
        except Exception as error:  # of the index's client: unreachable, refused, no package
            raise self._not_downloaded(str(wanted), error) from error
        return found

    def _finder(self) -> PackageFinder:
        require_extra("fits", "reading a release from a package index")
        from unearth import PackageFinder  # noqa: PLC0415 - an extra

        return PackageFinder(index_urls=[self.index_url], ignore_compatibility=True)

    def _downloaded(self, package: str, version: Version, found: Package) -> Release:
        finder = self._finder()
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            # A download that is cut off leaves nothing that looks like a release.
            with TemporaryDirectory(dir=self.cache) as folder:
                path = finder.download(found.link, folder)
                if path.parent == Path(folder):
                    path = path.rename(self.cache / path.name)
        except Exception as error:
            raise self._not_downloaded(f"{package} {version}", error) from error
        return Release(package=package, version=version, path=path)

    def _not_found(self, wanted: Requirement, known: list[Version]) -> ReleaseError:
        places = ", ".join(map(str, (*self.folders, self.cache)))
        there = f"there {', '.join(map(str, known))}" if known else "there is none"
        index = "and the index is not asked (--offline)" if self.is_offline else "nor in the index"
        return ReleaseError(
            "release-not-found",
            f"no release {str(wanted)!r} is in {places}, {index}; expected one of them: {there}. "
            "Name another, or a folder that has it: --releases FOLDER.",
        )

    def _not_downloaded(self, what: str, error: Exception) -> ReleaseError:
        return ReleaseError(
            "release-not-downloaded",
            f"{what} cannot be downloaded from {self.index_url}: {error}; expected a package index "
            "that answers. Name another with --index-url, or a folder with a wheel or a source "
            "distribution: --releases FOLDER.",
        )


def is_exact(wanted: Requirement) -> bool:
    """Return whether a requirement takes one version alone."""
    specifiers = [*wanted.specifier]
    return len(specifiers) == 1 and specifiers[0].operator == "==" and "*" not in str(specifiers[0])


def _takes_candidates(wanted: Requirement) -> bool:
    """Return whether a requirement names a pre-release; without it, none is taken."""
    return bool(wanted.specifier.prereleases)


def _named(file: str) -> tuple[str, Version | None]:
    """Return the distribution and version of a wheel's or a source distribution's name."""
    try:
        if file.endswith(".whl"):
            name, version, *_ = parse_wheel_filename(file)
            return name, version
        if file.endswith(".tar.gz"):
            return parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        pass
    return "", None
