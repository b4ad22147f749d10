"""Plugins and engines as they are named on a command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from backend_caps.compatibility.releases import Releases
from backend_caps.compatibility.sources import (
    EngineSource,
    SourceError,
    engine_sources,
    is_engine,
    open_pair,
    open_plugin,
)
from tests.unit.compatibility.distributions import write_checkout, write_sdist, write_wheel
from tests.unit.engines.source.trees import bytes_of, write_folder

VLLM = {"vllm/__init__.py": "", "vllm/worker.py": "x = 1"}
PROJECT = """
[project]
name = "acme-caps"
version = "1.5"
dependencies = ["vllm>=0.30"]
[project.entry-points."vllm.general_plugins"]
acme = "acme.plugin:register"
"""
ACME = {"acme/__init__.py": "", "acme/plugin.py": "x = 1"}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *[(word, True) for word in ("vllm", "sglang", "vllm@0.33.0", "vllm@/a@b", "vllm==0.33")],
        *[(word, True) for word in ("vllm>=0.30", "vllm<1", "vllm!=0.1", "vllm~=0.30")],
        *[(word, False) for word in ("vllm-ascend", "vllm_ascend", ".", "./vllm", "acme@vllm")],
    ],
)
def test_a_word_names_an_engine_by_how_it_begins(word: str, expected: bool) -> None:
    """What has an engine's name in it may be a plugin of that."""
    assert is_engine(word) is expected


def _sources(folder: Path, word: str) -> list[EngineSource]:
    """Find an engine beside a folder of wheels, without an index."""
    return engine_sources(
        word, Releases(folders=[folder / "wheels"], cache=folder / "cache", is_offline=True)
    )


def _wheels(folder: Path, *versions: str) -> list[Path]:
    return [write_wheel(folder / "wheels", f"vllm-{version}", VLLM) for version in versions]


@pytest.mark.parametrize("word", ["vllm", "vllm@", "vllm@installed"])
def test_an_engine_without_a_place_is_the_installed_one(tmp_path: Path, word: str) -> None:
    """A name alone is enough."""
    assert _sources(tmp_path, word) == [EngineSource(package="vllm")]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        pytest.param("vllm@0.32.0", ["0.32.0"], id="one"),
        pytest.param("vllm==0.32.0", ["0.32.0"], id="one, as pip names it"),
        pytest.param("vllm@latest", ["0.33.0"], id="the newest"),
        pytest.param("vllm>=0.32", ["0.32.0", "0.33.0"], id="a range"),
    ],
)
def test_an_engine_is_named_by_its_releases(
    tmp_path: Path, word: str, expected: Sequence[str]
) -> None:
    """Those of a range come with the oldest first."""
    paths = dict(
        zip(versions := ("0.31.0", "0.32.0", "0.33.0"), _wheels(tmp_path, *versions), strict=True)
    )

    found = _sources(tmp_path, word)

    assert found == [EngineSource(package="vllm", path=paths[each]) for each in expected]


def test_an_engine_is_named_by_its_path(tmp_path: Path) -> None:
    """A wheel, an sdist or a folder."""
    [wheel] = _wheels(tmp_path, "0.33.0")

    assert _sources(tmp_path, f"vllm@{wheel}") == [EngineSource(package="vllm", path=wheel)]
    assert _sources(tmp_path, f"vllm@{tmp_path}@v1") == [
        EngineSource(package="vllm", path=tmp_path, revision="v1")
    ]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        pytest.param(
            "vllm@nowhere", "'nowhere' is no path that exists, and no version", id="place"
        ),
        pytest.param("vllm@nowhere@v1", "'nowhere@v1' is no path that exists", id="revision"),
        pytest.param("vllm>=newest", "'vllm>=newest' is no range of versions", id="range"),
        pytest.param("vllm==0.33.0@", "'vllm==0.33.0@' is no range of versions", id="both"),
    ],
)
def test_an_engine_that_is_spelled_wrong_is_an_error(
    tmp_path: Path, word: str, expected: str
) -> None:
    """The error says how engines are named."""
    with pytest.raises(SourceError) as raised:
        _sources(tmp_path, word)

    assert raised.value.code == "engine-spelled-wrong"
    assert expected in raised.value.message


def test_an_engine_is_read_from_a_wheel(tmp_path: Path) -> None:
    """Its version is that of the metadata, its source the file's name."""
    [wheel] = _wheels(tmp_path, "0.33.0")

    tree = EngineSource(package="vllm", path=wheel).open()

    assert (tree.version, tree.source) == ("0.33.0", wheel.name)
    assert sorted(tree.files) == sorted(VLLM)


VERSIONS = [
    pytest.param({"vllm/version.py": "__version__ = '1.0'"}, "1.0", id="in its files"),
    pytest.param({"pyproject.toml": "[project]\nversion = '1.0'"}, "1.0", id="in its project"),
    pytest.param({"PKG-INFO": "Metadata-Version: 2.1\nVersion: 1.0\n"}, "1.0", id="of an sdist"),
    pytest.param({"PKG-INFO": "Metadata-Version: 2.1\n"}, None, id="not in its metadata"),
    pytest.param({}, None, id="nowhere"),
]


@pytest.mark.parametrize(("files", "expected"), VERSIONS)
def test_an_engine_has_the_version_that_it_states(
    tmp_path: Path, files: dict[str, str], expected: str | None
) -> None:
    """A checkout or an sdist may state it in one of several places."""
    sdist = write_sdist(tmp_path, "vllm-2.0", {**VLLM, **files})
    folder = write_folder(tmp_path / "vllm", {**VLLM, **files})

    opened = [EngineSource(package="vllm", path=path).open() for path in (sdist, folder)]

    assert [(tree.version, tree.source) for tree in opened] == [
        (expected, sdist.name),
        (expected, "vllm"),
    ]


def test_an_engine_is_read_at_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is the checkout's name with the revision."""
    checkout = write_checkout(tmp_path / "checkout", VLLM, tag="v1")
    (checkout / "vllm" / "worker.py").write_text("x = 2")
    monkeypatch.chdir(checkout)

    tree = EngineSource(package="vllm", path=Path(), revision="v1").open()

    assert tree.source == "checkout@v1"
    assert tree.files["vllm/worker.py"] == b"x = 1"


def test_an_installed_engine_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read where it would be imported from."""
    write_folder(tmp_path, VLLM)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert sorted(EngineSource(package="vllm").open().files) == sorted(VLLM)


def test_a_pair_has_the_files_of_both(tmp_path: Path) -> None:
    """The plugin's do not replace the engine's."""
    plugin = open_plugin(str(write_folder(tmp_path / "p", {**ACME, "vllm/__init__.py": "x = 1"})))
    engine = EngineSource(package="vllm", path=write_folder(tmp_path / "e", VLLM)).open()

    pair = open_pair(plugin, engine)

    assert dict(pair.index.tree.files) == {
        path: bytes_of(text) for path, text in {**ACME, **VLLM}.items()
    }
    assert pair.plugin is plugin


def _files(word: str) -> list[str]:
    return sorted(open_plugin(word).files)


def test_a_plugin_is_a_folder(tmp_path: Path) -> None:
    """Name, version, entry points and requirements are those of its project."""
    plugin = open_plugin(str(write_folder(tmp_path, {**ACME, "pyproject.toml": PROJECT})))

    assert plugin.label == "acme-caps 1.5"
    assert plugin.requires == ("vllm>=0.30",)
    assert [each.value for each in plugin.entry_points] == ["acme.plugin:register"]
    assert plugin.files == {path: bytes_of(text) for path, text in ACME.items()}


PLACES = [
    pytest.param(ACME, sorted(ACME), id="at the top"),
    pytest.param({f"src/{path}": text for path, text in ACME.items()}, sorted(ACME), id="in src"),
    pytest.param(
        {**ACME, "tests/__init__.py": "", "vllm/__init__.py": "", "scripts/a.py": "", "b.py": ""},
        sorted(ACME), id="beside tests, an engine and scripts",
    ),
    pytest.param({"a/__init__.py": "", "b/__init__.py": ""}, ["a/__init__.py", "b/__init__.py"],
                 id="two of them"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "expected"), PLACES)
def test_a_plugin_has_the_packages_of_a_folder(
    tmp_path: Path, texts: dict[str, str], expected: list[str]
) -> None:
    """Tests are no part of it, nor is an engine that stands beside it."""
    assert _files(str(write_folder(tmp_path / "checkout", texts))) == expected
    assert _files(str(write_sdist(tmp_path, "acme-1.0", texts))) == expected


def test_a_plugin_is_a_package_alone(tmp_path: Path) -> None:
    """The folder that is imported may be named itself."""
    write_folder(tmp_path, {**ACME, "acme/version.py": "__version__ = '1.0'"})

    assert open_plugin(str(tmp_path / "acme")).label == "acme 1.0"
    assert _files(str(tmp_path / "acme")) == [*sorted(ACME), "acme/version.py"]


def test_a_plugin_is_a_wheel(tmp_path: Path) -> None:
    """Its packages are those at its top."""
    texts = {**ACME, "acme/inner/__init__.py": "", "tests/__init__.py": "", "vllm/__init__.py": ""}

    plugin = open_plugin(str(write_wheel(tmp_path, "acme_caps-1.5", texts)))

    assert plugin.label == "acme_caps 1.5"
    assert sorted(plugin.files) == ["acme/__init__.py", "acme/inner/__init__.py", "acme/plugin.py"]


MODULE = "[project]\nname = 'acme'\n[project.entry-points.'vllm.general_plugins']\na = 'acme:f'\n"


@pytest.mark.parametrize("folder", ["", "src/"], ids=["at the top", "in src"])
def test_a_plugin_may_be_a_module_without_a_package(tmp_path: Path, folder: str) -> None:
    """It is what an entry point names; lines end as the parser counts them."""
    texts = {f"{folder}acme.py": "def f():\r\n  pass\r", "b.py": "", "pyproject.toml": MODULE}
    checkout = write_folder(tmp_path / "checkout", texts)

    assert open_plugin(str(checkout)).files == {"acme.py": b"def f():\n  pass\n"}
    assert _files(str(write_sdist(tmp_path, "acme-1.0", texts))) == ["acme.py"]


def test_a_wheel_may_have_a_module_beside_its_package(tmp_path: Path) -> None:
    """As declarations have, which are to be read without the package."""
    points = "[backend_caps.backends]\na = acme_caps:ACME\nb = gone:B\n"
    texts = {**ACME, "acme_caps.py": "", "acme-1.0.dist-info/entry_points.txt": points}

    assert _files(str(write_wheel(tmp_path, "acme-1.0", texts))) == [*sorted(ACME), "acme_caps.py"]


def test_a_plugin_is_a_revision_of_a_checkout(tmp_path: Path) -> None:
    """What was changed since is not read."""
    checkout = write_checkout(tmp_path / "checkout", ACME, tag="v1")
    (checkout / "acme" / "plugin.py").write_text("x = 2")

    plugin = open_plugin(f"{checkout}@v1")

    assert plugin.files["acme/plugin.py"] == b"x = 1"
    assert plugin.name == "checkout"


def _install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, texts: dict[str, str], **more: str
) -> None:
    """Write a distribution as pip does into a folder, the only one of the path."""
    info = "acme_caps-1.5.dist-info"
    metadata = "Metadata-Version: 2.1\nName: acme-caps\nVersion: 1.5\n"
    record = "".join(f"{path},,\n" for path in texts)
    files = {"METADATA": metadata, "RECORD": record, **more}
    stated = {f"{info}/{name.replace('_json', '.json')}": text for name, text in files.items()}
    write_folder(folder, {**texts, **stated})
    monkeypatch.setattr(sys, "path", [str(folder)])


def test_a_plugin_is_an_installed_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its packages are those that it brought."""
    write_folder(tmp_path, {"other/__init__.py": ""})
    _install(tmp_path, monkeypatch, {**ACME, "tests/__init__.py": "", "acme.pth": ""})

    assert open_plugin("acme-caps").label == "acme-caps 1.5"
    assert _files("acme-caps") == sorted(ACME)


@pytest.mark.parametrize("name", ["checkout", "check out"])
def test_a_plugin_may_be_installed_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The folder of its checkout is in its metadata."""
    checkout = write_folder(tmp_path / name, ACME)
    url = json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    _install(tmp_path / "site", monkeypatch, {}, direct_url_json=url)

    assert open_plugin("acme-caps").label == "acme-caps 1.5"
    assert _files("acme-caps") == sorted(ACME)


URLS = [
    pytest.param({}, id="none"),
    pytest.param({"direct_url_json": "{}"}, id="empty"),
    pytest.param({"direct_url_json": "{"}, id="no JSON"),
    pytest.param({"direct_url_json": '{"url": "https://example.com/a.whl"}'}, id="another's"),
]


@pytest.mark.parametrize("stated", URLS)
def test_a_distribution_without_a_package_is_no_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: dict[str, str]
) -> None:
    """One that was installed from elsewhere has no checkout here."""
    _install(tmp_path, monkeypatch, {}, **stated)

    assert _refused("acme-caps").code == "plugin-empty"


def _refused(word: str) -> SourceError:
    with pytest.raises(SourceError) as raised:
        open_plugin(word)
    return raised.value


@pytest.mark.parametrize("word", ["nothing-of-that-name", "nowhere@v1"])
def test_a_plugin_that_is_nowhere_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """The error says how plugins are named."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    error = _refused(word)

    assert error.code == "plugin-not-found"
    assert error.message.startswith(f"no plugin {word!r}: it is no path, and no distribution")


def test_a_folder_without_a_package_is_no_plugin(tmp_path: Path) -> None:
    """The error names what was named, not where it was unpacked."""
    sdist = write_sdist(tmp_path, "acme-1.0", {"acme.py": ""})

    error = _refused(str(sdist))

    assert error.code == "plugin-empty"
    assert error.message.startswith(f"{sdist} has no package in it; ")


UNREADABLE = [
    pytest.param("a.whl", "", "not a zip file", id="no wheel"),
    pytest.param("a/pyproject.toml", "[project", "Expected", id="no TOML"),
]


@pytest.mark.parametrize(("file", "text", "expected"), UNREADABLE)
def test_a_plugin_that_cannot_be_read_is_an_error(
    tmp_path: Path, file: str, text: str, expected: str
) -> None:
    """The error has the cause."""
    write_folder(tmp_path, {file: text})
    word = str(tmp_path / file.partition("/")[0])

    error = _refused(word)

    assert error.code == "plugin-unreadable"
    assert error.message.startswith(f"{word} cannot be read: ")
    assert expected in error.message


def test_a_checkout_that_is_gone_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A distribution may be installed in place of a folder that was deleted."""
    gone = tmp_path / "gone"
    _install(tmp_path, monkeypatch, {}, direct_url_json=json.dumps({"url": gone.as_uri()}))

    assert _refused("acme-caps").code == "plugin-unreadable"
