"""What `make dist` builds: the same bytes twice, of one version, with what users need in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.metadata import Metadata

from docs.tools import schemas
from tests.plugins.environments import PLUGINS, ROOT, Plugin
from tests.release.building import built, copy_checkout, digests, epoch_of_commit, projects_of

pytestmark = pytest.mark.slow

VERSION = version("backend-caps")
_ABOUT = {"LICENSE", "README.md", "pyproject.toml"}
"""What a wheel has as metadata."""
PROJECTS = {project.name: project for project in projects_of(ROOT)}
_BUILD = """
import sys
from pathlib import Path
from tests.release.building import build
build(*map(Path, sys.argv[1:]))
"""


def _built(copy: Path, folder: Path, *, mode: int, hash_seed: str, zone: str) -> Path:
    """Build a copy of a copy with files of this mode and age, in a process of its own."""
    checkout, into = folder / "checkout", folder / "dist"
    into.mkdir()
    shutil.copytree(copy, checkout)
    for file in checkout.rglob("*"):
        if file.is_file():
            file.chmod(mode)
            os.utime(file, (mode, mode))
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": hash_seed,
        "SOURCE_DATE_EPOCH": epoch_of_commit(),
        "TZ": zone,
    }
    command = [sys.executable, "-c", _BUILD, str(checkout), str(into)]
    subprocess.run(command, cwd=ROOT, env=environ, check=True)
    return into


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git knows of the checkout, as it is now."""
    folder = tmp_path_factory.mktemp("copy")
    copy_checkout(folder)
    return folder


@pytest.fixture(scope="module")
def twice(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two builds, with nothing in common but the files and the time of their commit."""
    one, other = map(tmp_path_factory.mktemp, ("one", "another-place"))
    return (
        _built(copy, one, mode=0o644, hash_seed="1", zone="UTC"),
        _built(copy, other, mode=0o600, hash_seed="2", zone="Asia/Tokyo"),
    )


def _texts(archive: Path) -> dict[str, bytes]:
    """Read a wheel or an sdist; of an sdist without the folder that everything is in."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        held = {own.name.partition("/")[2]: sdist.extractfile(own) for own in sdist}
        return {name: file.read() for name, file in held.items() if file is not None}


def _names(folder: Path) -> set[str]:
    """Name the files below a folder."""
    return {str(own.relative_to(folder)) for own in folder.rglob("*") if own.is_file()}


def _metadata(archive: Path) -> bytes:
    ending = "dist-info/METADATA" if archive.suffix == ".whl" else "PKG-INFO"
    (text,) = [text for name, text in _texts(archive).items() if name.endswith(ending)]
    return text


def _archive(folder: Path, distribution: str, ending: str) -> Path:
    return folder / f"{distribution.replace('-', '_')}-{VERSION}{ending}"


def test_build_gives_the_same_bytes_twice(twice: tuple[Path, Path]) -> None:
    """In another folder, later, by another seed and with other modes, each file is the same."""
    one, other = map(digests, twice)

    assert one == other
    assert len(one) == 2 * len(PROJECTS)


def test_every_metadata_is_valid(twice: tuple[Path, Path]) -> None:
    """Package indexes take each: by the rules that they check uploads by."""
    read = [Metadata.from_email(_metadata(archive)) for archive in built(twice[0])]

    assert {own.license_expression for own in read} == {"Apache-2.0"}
    assert {own.description_content_type for own in read} == {"text/markdown"}
    assert len(read) == 2 * len(PROJECTS)


def test_license_is_in_every_archive(twice: tuple[Path, Path]) -> None:
    """The text of the license comes with each, where its metadata says."""
    license_ = (ROOT / "LICENSE").read_bytes()

    held = [
        text
        for archive in built(twice[0])
        for name, text in _texts(archive).items()
        if re.fullmatch(r"LICENSE|.*\.dist-info/licenses/LICENSE", name)
    ]

    assert held == [license_] * 2 * len(PROJECTS)


def test_all_have_one_version(twice: tuple[Path, Path]) -> None:
    """The package's own pyproject.toml alone says a version, and each archive has that one."""
    said = [
        name
        for name, project in PROJECTS.items()
        if "version" in tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    ]

    assert said == [ROOT.name]
    assert {str(Metadata.from_email(_metadata(own)).version) for own in built(twice[0])} == {
        VERSION
    }


def test_wheel_holds_what_the_package_reads(copy: Path, twice: tuple[Path, Path]) -> None:
    """The template, the rules, the schemas and `py.typed` come with the code."""
    wheel = _texts(_archive(twice[0], "backend-caps", "-py3-none-any.whl"))

    package = {f"backend_caps/{name}" for name in _names(copy / "backend_caps")}
    published = {f"backend_caps/schemas/{schemas.path_of(name).name}" for name in schemas.SCHEMAS}
    info = {name for name in wheel if name.startswith(f"backend_caps-{VERSION}.dist-info/")}
    assert {*wheel} == package | published | info


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.folder.name)
def test_archives_of_plugin_hold_its_code(
    plugin: Plugin, copy: Path, twice: tuple[Path, Path]
) -> None:
    """Code, types and evidence come with a plugin; its tests come with its sdist."""
    tracked = _names(copy / plugin.folder.relative_to(ROOT))

    wheel = _texts(_archive(twice[0], plugin.distribution, "-py3-none-any.whl"))
    sdist = _texts(_archive(twice[0], plugin.distribution, ".tar.gz"))

    code = {name for name in tracked if not name.startswith("tests/")} - _ABOUT
    assert {name for name in wheel if ".dist-info/" not in name} == code
    assert {*sdist} == tracked | {".gitignore", "PKG-INFO"}


def test_sdist_holds_the_checkout(copy: Path, twice: tuple[Path, Path]) -> None:
    """It has every file that git knows, and nothing else but its metadata."""
    sdist = _texts(_archive(twice[0], "backend-caps", ".tar.gz"))

    assert {*sdist} == _names(copy) | {"PKG-INFO"}


def test_pages_of_indexes_can_be_rendered(twice: tuple[Path, Path]) -> None:
    """A README is markdown that opens with the distribution's name, without HTML of its own."""
    read = [Metadata.from_email(_metadata(archive)) for archive in built(twice[0])]

    rendered = {own.name: _rendered(own) for own in read}

    assert rendered == {own.name: (f"<h1>{own.name}</h1>", False) for own in read}


def _rendered(metadata: Metadata) -> tuple[str, bool]:
    """Render a description; its first line, and whether it has HTML that was not markdown."""
    parser = MarkdownIt("gfm-like", {"linkify": False})
    assert metadata.description is not None, "each project has a README"
    first = parser.render(metadata.description).partition("\n")[0]
    return first, any("html" in token.type for token in parser.parse(metadata.description))


def test_citation_says_what_the_package_says() -> None:
    """`CITATION.cff` has the package's name and license; the version stands elsewhere."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

    said = {key: citation.get(key) for key in ("cff-version", "title", "license", "keywords")}

    assert said == {
        "cff-version": "1.2.0",
        "title": project["name"],
        "license": project["license"],
        "keywords": project["keywords"],
    }
    assert citation.keys().isdisjoint({"version", "date-released"})


def test_changelog_can_be_made() -> None:
    """Every fragment becomes an entry of the next version, under its part's and kind's heading."""
    fragments = sorted((ROOT / "changelog").rglob("*.md"))

    command = [sys.executable, "-m", "towncrier", "build", "--draft"]
    draft = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout

    entries = {
        " ".join(entry.split()) for entry in re.split(r"^- |^#.*", draft, flags=re.MULTILINE)
    }
    parts = {own.parent.name for own in fragments} - {"changelog"}
    assert draft.startswith(f"## {VERSION} (")
    assert len(re.findall("^### ", draft, flags=re.MULTILINE)) == len(parts) + 1
    assert entries - {""} == {" ".join(own.read_text("utf-8").split()) for own in fragments}
