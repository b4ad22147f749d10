"""The evidence beside implementations, compared with what is installed now.

No implementation is imported: packages are located and hashed as files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.machinery import PathFinder
from os import PathLike
from pathlib import Path

from pydantic import ValidationError

from backend_caps.capability.backend import Backend
from backend_caps.capability.declaration import Declaration
from backend_caps.capability.evidence import (
    Evidence,
    Present,
    Standing,
    believed,
    changes_since,
    declaration_digest,
)
from backend_caps.capability.provenance import Source, Status
from backend_caps.discovery.diagnosis import validation_fault
from backend_caps.discovery.metadata import PathEntry, named, read_regular
from backend_caps.discovery.pointer import top_level
from backend_caps.discovery.process import Search
from backend_caps.discovery.registry import Registry

_KIT = "backend-caps"
KIT_AND_TORCH = frozenset({_KIT, "torch", "triton"})
"""The distributions whose versions evidence names."""
_NOT_IN_A_FILE = re.compile(r"[^\w.-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """The code behind a declaration."""

    root: Path
    """The folder of its package, or the one file of its module."""

    @classmethod
    def of(cls, pointer: str, imports: Sequence[str]) -> Implementation | None:
        """Find the package that `"package.module:Name"` is in; None if absent.

        Nothing is imported. Of a namespace package, the first regular package in it counts.
        """
        names = pointer.partition(":")[0].split(".")
        spec = top_level(names[0], imports)
        for end in range(2, len(names) + 1):
            if spec is None or spec.origin is not None:
                break
            within = spec.submodule_search_locations
            spec = PathFinder.find_spec(".".join(names[:end]), within)
        if spec is None or spec.origin is None:
            return None
        file = Path(spec.origin)
        root = file if spec.submodule_search_locations is None else file.parent
        return cls(root=root) if root.exists() else None

    def evidence_file(self, backend: str) -> Path:
        """Return the path of a backend's evidence: in its package, or beside its module."""
        name = f"{_NOT_IN_A_FILE.sub('_', backend)}.json"
        if self.root.is_dir():
            return self.root / "evidence" / name
        return self.root.with_name(f"{self.root.stem}.evidence") / name

    def digest(self) -> str:
        """Hash its Python files, with line ends normalised.

        Raises:
            OSError: one cannot be read, is no regular file, or is too large.
        """
        digest = hashlib.sha256()
        for name, data in self.sources():
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        return f"sha256:{digest.hexdigest()}"

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Yield each Python file, sorted: its name in the package, and its bytes.

        Raises:
            OSError: one cannot be read, is no regular file, or is too large.
        """
        is_folder = self.root.is_dir()
        files = self.root.rglob("*.py") if is_folder else [self.root]
        folder = self.root if is_folder else self.root.parent
        named_files = {file.relative_to(folder).as_posix(): file for file in files}
        for name, file in sorted(named_files.items()):
            yield name, read_regular(str(file)).replace(b"\r\n", b"\n")


def read_standings(
    backends: Iterable[Backend],
    *,
    path: Sequence[str | PathLike[str]] | None = None,
    device: str | None = None,
) -> Mapping[str, Standing]:
    """Read the evidence of backends, and compare it with what is installed.

    Args:
        backends: the backends that discovery found.
        path: the folders that they were searched in, as `discover` took them.
        device: the type of the server's device, where that is known.

    Returns:
        The standing of each backend's claims, by name; a backend without evidence is left out.
    """
    imports = imports_of(path)
    # Reads every distribution's folder name: done once, and only where there is evidence.
    versions = cache(partial(versions_of, KIT_AND_TORCH, imports))
    found: dict[str, Standing] = {}
    for backend in backends:
        pointer = backend.declaration and backend.declaration.implementation
        if backend.status is not Status.OK or not pointer:
            continue
        if (implementation := Implementation.of(pointer, imports)) is None:
            continue
        if (standing := _standing(backend, implementation, versions, device)) is not None:
            found[backend.name] = standing
    return found


def require_evidence(
    registry: Registry,
    *,
    path: Sequence[str | PathLike[str]] | None = None,
    device: str | None = None,
) -> Registry:
    """Remove the unverified claims from every declaration.

    Plans that are resolved from the returned registry count them as undeclared, with the reason.

    Args:
        registry: what discovery found.
        path: the folders that it was searched in, as `discover` took them.
        device: the type of the server's device, where that is known.
    """
    standings = read_standings(registry.entries, path=path, device=device)
    entries = (believed(entry, standings.get(entry.name, Standing())) for entry in registry.entries)
    return replace(registry, entries=tuple(entries))


def imports_of(path: Sequence[str | PathLike[str]] | None) -> Sequence[str]:
    """List where the plugins of some folders, or of the environment, are imported from."""
    return (Search.of_folders(path) if path else Search.of_process()).imports


def versions_of(names: Collection[str], imports: Iterable[str]) -> Mapping[str, str]:
    """Look up installed versions, without build tags; leave out what is missing."""
    found: dict[str, str] = {}
    for root in imports:
        place = PathEntry.at(root)
        for folder in place.folders if place is not None else ():
            name, version = named(folder, root)
            if name in names and version is not None:
                found.setdefault(name, version.partition("+")[0])
        if len(found) == len(names):
            break
    return found


def present_of(
    declaration: Declaration,
    source: Source,
    implementation: Implementation,
    versions: Mapping[str, str],
) -> Present:
    """Return the versions and digests to compare a backend's evidence with."""
    return Present(
        kit_version=versions.get(_KIT),
        torch=versions.get("torch"),
        triton=versions.get("triton"),
        distribution=source.distribution,
        version=source.version,
        source=implementation.digest(),
        declaration=declaration_digest(declaration),
    )


def _standing(
    backend: Backend,
    implementation: Implementation,
    versions: Callable[[], Mapping[str, str]],
    device: str | None,
) -> Standing | None:
    file = implementation.evidence_file(backend.name)
    try:
        kept = Evidence.model_validate_json(read_regular(str(file)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Standing(problem=f"{file.name} cannot be read: {error.strerror or error}")
    except ValidationError as error:
        return Standing(problem=f"{file.name} does not fit: {validation_fault(error)}")
    if kept.backend != backend.name:
        return Standing(problem=f"{file.name} is of {kept.backend!r}")
    assert backend.declaration is not None, "its implementation was found by it"
    try:
        here = present_of(backend.declaration, backend.source, implementation, versions())
    except OSError as error:
        cause = error.strerror or error
        return Standing(problem=f"the files that {file.name} is of cannot be read: {cause}")
    changes = changes_since(kept, replace(here, device=device))
    return Standing(evidence=kept, changes=changes)
