"""What the metadata of a plugin state, read from folders and wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from backend_caps.compatibility.metadata import Metadata, metadata_of
from tests.unit.engines.source.trees import bytes_of, write_folder

INI = """
# points
[vllm.general_plugins]
acme = acme.plugin:register
; other = acme.other

[ vllm.platform_plugins ]
acme=acme.plugin:platform
"""
STATED = """
Metadata-Version: 2.1
Name: acme-caps
Version: 1.5
Requires-Dist: vllm>=0.30
Requires-Dist: numpy

""".lstrip()


def _wheel(folder: Path, **files: str) -> Path:
    """Write a wheel with files of its metadata, by names without a dot."""
    path = folder / "acme_caps-1.5-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("acme/__init__.py", "")
        for name, text in files.items():
            file = name.replace("_txt", ".txt")
            archive.writestr(f"acme_caps-1.5.dist-info/{file}", bytes_of(text))
    return path


def _points(stated: Metadata) -> list[tuple[str, str, str, str]]:
    return [(each.group, each.name, each.value, each.at) for each in stated.entry_points]


def _of_project(folder: Path, text: str) -> Metadata:
    return metadata_of(write_folder(folder, {"acme/pyproject.toml": text}) / "acme")


def _of_setup(folder: Path, text: str) -> Metadata:
    return metadata_of(write_folder(folder, {"acme/setup.py": text}) / "acme")


def test_a_wheel_states_its_metadata(tmp_path: Path) -> None:
    """Name, version and requirements are those of METADATA."""
    stated = metadata_of(_wheel(tmp_path, METADATA=STATED))

    assert stated == Metadata(name="acme-caps", version="1.5", requires=("vllm>=0.30", "numpy"))


def test_entry_points_have_their_lines(tmp_path: Path) -> None:
    """Comments are none; each has the file and line that state it."""
    stated = metadata_of(_wheel(tmp_path, METADATA=STATED, entry_points_txt=INI))

    file = "acme_caps-1.5.dist-info/entry_points.txt"
    assert _points(stated) == [
        ("vllm.general_plugins", "acme", "acme.plugin:register", f"{file}:4"),
        ("vllm.platform_plugins", "acme", "acme.plugin:platform", f"{file}:8"),
    ]


def test_a_wheel_without_metadata_has_its_files_name(tmp_path: Path) -> None:
    """Nothing else is known of it."""
    assert metadata_of(_wheel(tmp_path)) == Metadata(name="acme_caps-1.5-py3-none-any")


def test_metadata_without_a_name_have_their_folders(tmp_path: Path) -> None:
    """A version that is not stated is none."""
    stated = metadata_of(_wheel(tmp_path, METADATA="Metadata-Version: 2.1\n\n"))

    assert stated == Metadata(name="acme_caps-1.5.dist-info")


@pytest.mark.parametrize("place", ["", "src/"])
def test_what_was_built_in_a_folder_is_read(tmp_path: Path, place: str) -> None:
    """Of setuptools' sdists and checkouts, an `egg-info` states what the build found."""
    files = {
        f"{place}acme.egg-info/PKG-INFO": STATED.replace("Requires-Dist", "X-Other"),
        f"{place}acme.egg-info/requires.txt": "vllm>=0.30\n\n[extra]\nnumpy\n",
        f"{place}acme.egg-info/entry_points.txt": "[g]\na = b:c",
        "pyproject.toml": "[project]\nname = 'other'",
    }

    stated = metadata_of(write_folder(tmp_path, files))

    assert (stated.name, stated.version) == ("acme-caps", "1.5")
    assert stated.requires == ("vllm>=0.30", 'numpy; extra == "extra"')
    assert _points(stated) == [("g", "a", "b:c", "acme.egg-info/entry_points.txt:2")]


def test_a_project_states_its_metadata(tmp_path: Path) -> None:
    """A checkout is read by its pyproject.toml, where nothing was built."""
    text = """
    [project]
    name = "acme-caps"
    version = "1.5"
    dependencies = ["vllm>=0.30", "numpy"]
    [project.entry-points."vllm.general_plugins"]
    acme = "acme.plugin:register"
    """

    stated = _of_project(tmp_path, text)

    assert _points(stated) == [
        ("vllm.general_plugins", "acme", "acme.plugin:register", "pyproject.toml:7")
    ]
    assert (stated.name, stated.version) == ("acme-caps", "1.5")
    assert stated.requires == ("vllm>=0.30", "numpy")


BARE = [
    pytest.param("", id="empty"),
    pytest.param("[project]\ndynamic = ['version', 'dependencies']", id="made by the build"),
    pytest.param(
        "[project]\nversion = 1\ndependencies = 'vllm'\nentry-points = 1", id="wrong types"
    ),
    pytest.param("[project.entry-points]\nacme = 'acme.plugin'", id="no group"),
    pytest.param("[project.entry-points.g]\nacme = {module = 'acme'}", id="no text"),
]


@pytest.mark.parametrize("text", BARE)
def test_a_project_that_states_nothing_has_its_folders_name(tmp_path: Path, text: str) -> None:
    """What is made by the build, or is of another type, is not known."""
    assert _of_project(tmp_path, text) == Metadata(name="acme")


def test_poetry_has_entry_points_of_its_own(tmp_path: Path) -> None:
    """Their table is named plugins."""
    stated = _of_project(tmp_path, '[tool.poetry.plugins.g]\na = "b:c"')

    assert _points(stated) == [("g", "a", "b:c", "pyproject.toml:2")]


def test_an_entry_point_that_no_line_shows_is_at_the_first(tmp_path: Path) -> None:
    """A value may be written with escapes."""
    stated = _of_project(tmp_path, '[project.entry-points.g]\na = "b\\u003Ac"')

    assert _points(stated) == [("g", "a", "b:c", "pyproject.toml:1")]


def test_a_setup_script_states_entry_points_that_it_writes_out(tmp_path: Path) -> None:
    """It is not run; what it computes is not known."""
    text = """
    from setuptools import setup
    setup(
        name="acme-caps",
        entry_points={
            "vllm.general_plugins": ["acme = acme.plugin:register", name],
            "vllm.platform_plugins": "acme=acme.plugin:platform",
            GROUP: ["a = b:c"],
            **more,
        },
    )
    setup(entry_points=POINTS)
    """

    assert _points(_of_setup(tmp_path, text)) == [
        ("vllm.general_plugins", "acme", "acme.plugin:register", "setup.py:6"),
        ("vllm.platform_plugins", "acme", "acme.plugin:platform", "setup.py:7"),
    ]


def test_a_setup_script_that_is_no_python_states_nothing(tmp_path: Path) -> None:
    """It may be one of Python 2."""
    assert _of_setup(tmp_path, "print 'x'") == Metadata(name="acme")


@pytest.mark.parametrize("text", ["[project", b"# \xff"])
def test_a_project_file_that_cannot_be_read_is_an_error(tmp_path: Path, text: str | bytes) -> None:
    """The caller says whose it is."""
    write_folder(tmp_path, {"pyproject.toml": text})

    with pytest.raises(ValueError, match=r"Expected|utf-8"):
        metadata_of(tmp_path)


SETTINGS = """
[metadata]
name = acme-caps
version = 1.5

[options]
install_requires =
    vllm>=0.30
    numpy

[options.entry_points]
vllm.general_plugins =
    acme = acme.plugin:register
    Other = acme.other
vllm.platform_plugins = acme = acme.plugin:platform
"""


def test_a_project_states_its_metadata_in_settings_of_setuptools(tmp_path: Path) -> None:
    """Each entry has the line that it stands in, or its file's first."""
    stated = metadata_of(write_folder(tmp_path, {"acme/setup.cfg": SETTINGS.lstrip()}) / "acme")

    assert (stated.name, stated.version) == ("acme-caps", "1.5")
    assert stated.requires == ("vllm>=0.30", "numpy")
    assert _points(stated) == [
        ("vllm.general_plugins", "acme", "acme.plugin:register", "setup.cfg:12"),
        ("vllm.general_plugins", "Other", "acme.other", "setup.cfg:13"),
        ("vllm.platform_plugins", "acme", "acme.plugin:platform", "setup.cfg:1"),
    ]


@pytest.mark.parametrize("text", ["", "[tool]\na = 1", "[metadata]\nversion = attr: acme.version"])
def test_settings_may_state_nothing(tmp_path: Path, text: str) -> None:
    """A version that is read elsewhere is none."""
    stated = metadata_of(write_folder(tmp_path, {"acme/setup.cfg": text}) / "acme")

    assert stated == Metadata(name="acme")


def test_settings_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    """The file and its line are named."""
    folder = write_folder(tmp_path, {"acme/setup.cfg": "a = 1"}) / "acme"

    with pytest.raises(ValueError, match=r"setup\.cfg"):
        metadata_of(folder)


def test_files_are_newer_than_what_a_build_left(tmp_path: Path) -> None:
    """The build fills in what they leave open."""
    project = "[project]\nname = 'acme'\n[project.entry-points.g]\na = 'acme.new:f'\n"
    texts = {
        "acme/pyproject.toml": project,
        "acme/acme.egg-info/PKG-INFO": STATED,
        "acme/acme.egg-info/entry_points.txt": "[g]\na = acme.old:f",
    }

    stated = metadata_of(write_folder(tmp_path, texts) / "acme")

    assert [each.value for each in stated.entry_points] == ["acme.new:f"]
    assert stated.version == "1.5"
