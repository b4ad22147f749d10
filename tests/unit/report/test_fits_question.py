"""Plugins and engines as they are named: what is compared, and where findings are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backend_caps.compatibility.releases import Releases, cache_folder
from backend_caps.report.fits import Question, fits_of, located_in
from backend_caps.report.fits_documents import FitsDocument
from tests.unit.report.fits_scene import (
    BREAKS,
    CALL,
    CALL_AT,
    GONE,
    HOLDS,
    write_plugin,
    write_release,
)

_VERSIONS = {"0.1.0": BREAKS, "0.2.0": HOLDS, "0.3.0": BREAKS, "0.4.0": BREAKS, "0.5.0": GONE}


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FitsDocument]:
    """Compare the plugin, which is in the working directory, with releases in a folder."""
    monkeypatch.chdir(write_plugin(tmp_path / "project"))
    folder = tmp_path / "releases"
    for version, utils in _VERSIONS.items():
        write_release(folder, version, utils)
    write_release(folder, "0.1.0", HOLDS, "sglang")
    releases = Releases(folders=[folder], cache=tmp_path / "cache", is_offline=True)

    def compare(*engines: str, finds_since: bool = False) -> FitsDocument:
        question = Question(
            plugins=["."], engines=engines, releases=releases, finds_since=finds_since
        )
        return fits_of(question)

    return compare


def _calls(found: FitsDocument) -> list[tuple[str | None, str | None]]:
    """List the release and the first release of each finding about the call."""
    return [
        (pair.version, each.since)
        for pair in found.pairs
        for each in pair.findings
        if each.why == CALL
    ]


def test_finding_is_at_the_line_below_the_working_directory(
    ask: Callable[..., FitsDocument],
) -> None:
    """A package in `src` is named from the project, where editors and code hosts look for it."""
    (pair,) = ask("vllm@0.3.0").pairs

    assert [each.at for each in pair.findings] == [CALL_AT]
    assert (pair.status, pair.required, pair.is_required) == ("breaks", ">=0.2", True)


def test_range_names_the_first_release_of_it_with_a_break(ask: Callable[..., FitsDocument]) -> None:
    """What breaks in the first release has no first one: an older one may have it as well."""
    assert _calls(ask("vllm>=0.1")) == [("0.1.0", None), ("0.3.0", "0.3.0"), ("0.4.0", "0.3.0")]


def test_releases_of_two_engines_are_not_compared(ask: Callable[..., FitsDocument]) -> None:
    """Two engines are no upgrade, and a break's first release is one of its own engine."""
    pair = ask("sglang@0.1.0", "vllm@0.3.0")
    three = ask("vllm@0.2.0", "sglang@0.1.0", "vllm@0.3.0")

    assert [each.before for each in (*pair.pairs, *three.pairs)] == [None] * 5
    assert _calls(pair) == _calls(three) == [("0.3.0", None)]


def test_single_release_names_the_first_on_request(ask: Callable[..., FitsDocument]) -> None:
    """Older releases in the folders are compared only where that is asked for."""
    assert _calls(ask("vllm@0.4.0")) == [("0.4.0", None)]
    assert _calls(ask("vllm@0.4.0", finds_since=True)) == [("0.4.0", "0.3.0")]


def test_release_that_holds_has_no_first(ask: Callable[..., FitsDocument]) -> None:
    """Without a break no older release is opened."""
    assert _calls(ask("vllm@0.2.0", finds_since=True)) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        pytest.param("0.2.0", "0.3.0", [("0.3.0", None)], id="brings"),
        pytest.param("0.3.0", "0.4.0", [], id="had already"),
    ],
)
def test_two_releases_are_an_upgrade(
    ask: Callable[..., FitsDocument], old: str, new: str, told: list[tuple[str, str | None]]
) -> None:
    """Of two releases of one engine, what the second brings is told."""
    found = ask(f"vllm@{old}", f"vllm@{new}")

    assert [each.before for each in found.pairs] == [old]
    assert _calls(found) == told


def test_files_are_found_wherever_a_folder_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is a project, with or without `src`, or the package itself; else it stays."""
    project = write_plugin(tmp_path / "project")
    monkeypatch.chdir(tmp_path)

    package = "tiny/__init__.py:1"
    assert located_in("project")(package) == f"project/src/{package}"
    assert located_in(str(project / "src"))(package) == f"project/src/{package}"
    assert located_in("project/src/tiny")(package) == f"project/src/{package}"
    assert located_in("project")("tiny/gone.py:1") == "tiny/gone.py:1"
    assert located_in("tiny.whl")(package) == package


def test_file_outside_the_working_directory_has_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not below the working directory is named in full."""
    project = write_plugin(tmp_path / "project")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert located_in("../project")("pyproject.toml:2") == f"{project}/pyproject.toml:2"


@pytest.mark.parametrize(
    ("environ", "root"),
    [
        pytest.param({"XDG_CACHE_HOME": "/kept"}, Path("/kept"), id="stated"),
        pytest.param({"XDG_CACHE_HOME": "kept"}, Path("~/.cache").expanduser(), id="relative"),
        pytest.param({}, Path("~/.cache").expanduser(), id="not stated"),
    ],
)
def test_downloads_are_kept_in_the_users_cache(environ: dict[str, str], root: Path) -> None:
    """The folder is the one of the XDG base directories; a relative path there is ignored."""
    assert cache_folder(environ) == root / "backend-caps" / "releases"
