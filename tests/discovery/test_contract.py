"""The scan finds what `importlib.metadata` finds, where nothing is wrong."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import backend_caps
from backend_caps.capability.provenance import Status
from backend_caps.discovery.metadata import normalised
from backend_caps.discovery.process import Search
from backend_caps.discovery.scan import BACKENDS, RULES, scan
from tests.discovery.conftest import DECLARES

Found = set[tuple[str, str, str, str, str | None]]


@dataclass(frozen=True)
class Distribution:
    """One distribution to install, and how."""

    name: str
    version: str
    ending: str
    place: int
    entry_points: str
    has_metadata: bool


names = st.sampled_from(["acme", "My_Pkg", "my.pkg", "Zed_caps", "zed.Caps", "fa3", "other_one"])
values = st.sampled_from(["a:B", "pkg.mod:Box.B", "a:B [gpu]", "a : B", "mod:x"]).filter(
    lambda value: " :" not in value
)
entries = st.dictionaries(st.sampled_from(["fa3", "triton", "my-flash", "x.y"]), values, max_size=3)
sections = st.dictionaries(
    st.sampled_from([BACKENDS, RULES, "console_scripts", "pytest11"]), entries, max_size=4
)


def written(groups: dict[str, dict[str, str]]) -> str:
    """Write entry points as installers do."""
    return "\n".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())
        for group, lines in groups.items()
    )


ARCHIVE = 3
"""The place that is an archive: there `importlib.metadata` cannot do without METADATA."""

distributions = st.lists(
    st.builds(
        Distribution,
        name=names,
        version=st.sampled_from(["1.0", "2.0.1", "3rc1"]),
        ending=st.sampled_from(["dist-info", "egg-info"]),
        place=st.integers(0, ARCHIVE),
        entry_points=sections.map(written),
        has_metadata=st.booleans(),
    ).filter(lambda distribution: distribution.has_metadata or distribution.place != ARCHIVE),
    unique_by=lambda distribution: (normalised(distribution.name), distribution.place),
    max_size=8,
)


def files(distribution: Distribution) -> Iterator[tuple[str, str]]:
    """List the files of a distribution's metadata, with their text."""
    folder = f"{distribution.name}-{distribution.version}.{distribution.ending}"
    yield f"{folder}/entry_points.txt", distribution.entry_points
    if distribution.has_metadata:
        file = "METADATA" if distribution.ending == "dist-info" else "PKG-INFO"
        text = (
            f"Metadata-Version: 2.1\nName: {distribution.name}\nVersion: {distribution.version}\n"
        )
        yield f"{folder}/{file}", text


def install(installed: Sequence[Distribution], root: Path) -> list[str]:
    """Install into three folders and an archive; the path of all four."""
    folders = [root / "first", root / "second", root / "third"]
    for folder in folders:
        folder.mkdir()
    archive = root / "last.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("readme.txt", "")
        for distribution in installed:
            for file, text in files(distribution):
                if distribution.place == ARCHIVE:
                    opened.writestr(file, text)
                else:
                    target = folders[distribution.place] / file
                    target.parent.mkdir(exist_ok=True)
                    target.write_text(text)
    return [*map(str, folders), str(archive)]


@contextmanager
def on_path(path: list[str]) -> Iterator[None]:
    """Let `importlib.metadata` look at a path: it takes no other than `sys.path`."""
    before = sys.path[:]
    importlib.invalidate_caches()
    sys.path[:] = path
    try:
        yield
    finally:
        sys.path[:] = before
        # It caches an archive's open file in a reference cycle. Left to the garbage collector, the
        # file may be finalised before the `ZipFile` that closes it: a ResourceWarning, in any test.
        fast_path: Any = vars(importlib.metadata)["FastPath"]
        for place in path:
            if joinpath := vars(fast_path(place)).get("joinpath"):
                joinpath.__self__.root.close()
        importlib.invalidate_caches()


def by_importlib(path: list[str]) -> Found:
    """List the entries of our groups as `importlib.metadata` sees them."""
    with on_path(path):
        return {
            (point.group, point.name, point.value, owner, version)
            for group in (BACKENDS, RULES)
            for point in importlib.metadata.entry_points(group=group)
            for owner, version in [_owner(point)]
        }


def _owner(point: importlib.metadata.EntryPoint) -> tuple[str, str | None]:
    distribution = point.dist
    assert distribution is not None
    stem = str(vars(distribution)["_path"]).rstrip("/").rpartition("/")[2].rpartition(".")[0]
    name, _, version = stem.partition("-")
    return normalised(distribution.metadata["Name"] or name), distribution.version or version


def by_us(path: list[str]) -> Found:
    """List the entries of our groups as the scan sees them."""
    return {
        (claim.group, claim.name, claim.value, claim.distribution, claim.version)
        for claim in scan(Search(searched=tuple(path), imports=())).claims
        if claim.status is Status.OK
    }


@settings(max_examples=60, deadline=None)
@given(distributions)
def test_scan_finds_what_importlib_metadata_finds(installed: list[Distribution]) -> None:
    """In a healthy environment both list the same entries of the same distributions."""
    with tempfile.TemporaryDirectory() as folder:
        path = install(installed, Path(folder))

        assert by_us(path) == by_importlib(path)


def test_scan_finds_what_importlib_metadata_finds_here() -> None:
    """In the environment that runs the tests both list the same entries."""
    path = [entry for entry in sys.path if entry]

    assert by_us(path) == by_importlib(path)


FINDER = """\
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "hooked_caps":
            return importlib.util.spec_from_file_location(name, {file!r})
sys.meta_path.append(Finder)
"""
REPORTS = """\
import importlib.metadata, json
from backend_caps.discovery.registry import discover
print(json.dumps({
    "ours": sorted((e.name, e.source.declared_at) for e in discover(environ={}).values()),
    "theirs": sorted(
        point.name for point in importlib.metadata.entry_points(group="backend_caps.backends")
    ),
}))
"""


def test_discover_reads_editable_installs(tmp_path: Path) -> None:
    """Both forms of an editable install are found and read: by a path, and by an import hook."""
    environment, project = tmp_path / "environment", tmp_path / "project"
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    sources = (sysconfig.get_path("purelib"), str(Path(backend_caps.__file__).parents[1]))
    (site / "a.pth").write_text(f"import site; site.addsitedir({sources[0]!r})\n{sources[1]}\n")
    project.mkdir()
    for name in ("pathed", "hooked"):
        (project / f"{name}_caps.py").write_text(DECLARES)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text(f"[{BACKENDS}]\n{name} = {name}_caps:DECLARATION\n")
    (site / "__editable__.pathed-1.0.pth").write_text(f"{project}\n")
    (site / "__editable___hooked_finder.py").write_text(
        FINDER.format(file=str(project / "hooked_caps.py"))
    )
    (site / "__editable__.hooked-1.0.pth").write_text("import __editable___hooked_finder\n")

    done = subprocess.run(
        [environment / "bin" / "python", "-c", REPORTS], capture_output=True, check=True, text=True
    )

    found = json.loads(done.stdout)
    assert {"hooked", "pathed"} <= set(found["theirs"])
    assert [name for name, _ in found["ours"]] == found["theirs"]
    assert ["hooked", f"{project}/hooked_caps.py:3"] in found["ours"]
    assert ["pathed", f"{project}/pathed_caps.py:3"] in found["ours"]
