"""Releases of an engine, in folders and on a package index of our own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from backend_caps import extras
from backend_caps.compatibility.releases import Release, ReleaseError, Releases, is_exact
from backend_caps.extras import MissingExtraError

NOWHERE = "http://127.0.0.1:9/simple/"
"""An index that nothing answers at: port 9 discards."""


def _wheel(version: str) -> str:
    return f"vllm-{version}-cp38-abi3-manylinux1_x86_64.whl"


def _sdist(version: str) -> str:
    return f"vllm-{version}.tar.gz"


def _folder(folder: Path, *names: str) -> Path:
    """Write files into a folder, each with its place as its text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"{folder.name}/{name}")
    return folder


def _index(root: Path, names: Iterable[str], *, digest: str | None = None) -> None:
    """Write an index of files, each with the digest that it has, or another."""
    folder = _folder(root / "vllm", *names)
    links = (
        f'<a href="{name}#sha256={digest or hashlib.sha256(path.read_bytes()).hexdigest()}">'
        f"{name}</a>"
        for name in names
        for path in [folder / name]
    )
    (folder / "index.html").write_text("\n".join(links))


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write nothing."""


@pytest.fixture
def index_url(tmp_path: Path) -> Iterator[str]:
    """Serve the folder `index`."""
    handler = partial(_Handler, directory=str(_folder(tmp_path / "index")))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _releases(
    tmp_path: Path, *folders: Path, index_url: str = NOWHERE, is_offline: bool = False
) -> Releases:
    cache = tmp_path / "cache"
    return Releases(folders=folders, cache=cache, index_url=index_url, is_offline=is_offline)


def _names(found: Iterable[Release]) -> list[str]:
    return [f"{each.path.parent.name}/{each.path.name}" for each in found]


def _refused(releases: Releases, wanted: str) -> ReleaseError:
    with pytest.raises(ReleaseError) as raised:
        releases.matching(Requirement(wanted))
    return raised.value


def test_a_release_in_a_folder_is_not_downloaded(tmp_path: Path) -> None:
    """Where a version alone is named and is there, the index is not asked."""
    folder = _folder(tmp_path / "wheels", _wheel("0.32.0"), _wheel("0.33.0"))

    [found] = _releases(tmp_path, folder).matching(Requirement("vllm==0.33.0"))

    path = folder / _wheel("0.33.0")
    assert found == Release(package="vllm", version=Version("0.33.0"), path=path)


def test_a_range_takes_what_is_there_offline(tmp_path: Path) -> None:
    """The oldest comes first; names that are none of a distribution's are left out."""
    names = ("vllm-x.whl", "vllm.tar.gz", "notes.txt", "vllm_ascend-0.33.0-py3-none-any.whl")
    versions = ("0.9.0", "0.10.0", "0.8.0", "0.11.0rc1")
    folder = _folder(tmp_path / "wheels", *names, *map(_wheel, versions))
    releases = _releases(tmp_path, folder, tmp_path / "nowhere", is_offline=True)

    found = releases.matching(Requirement("VLLM>=0.9"))

    assert [str(each.version) for each in found] == ["0.9.0", "0.10.0"]


def test_the_first_folder_counts_and_its_source_distribution(tmp_path: Path) -> None:
    """What a user names counts before what was downloaded, and a source before a wheel."""
    _folder(tmp_path / "cache", _sdist("1.0"), _sdist("2.0"), _wheel("3.0"))
    one = _folder(tmp_path / "one", _wheel("1.0"), _wheel("4.0"), _sdist("4.0"))
    other = _folder(tmp_path / "other", _sdist("1.0"), _wheel("2.0"))

    found = _releases(tmp_path, one, other, is_offline=True).matching(Requirement("vllm"))

    assert _names(found) == [
        f"one/{_wheel('1.0')}",
        f"other/{_wheel('2.0')}",
        f"cache/{_wheel('3.0')}",
        f"one/{_sdist('4.0')}",
    ]


def test_what_no_folder_has_is_downloaded_once(tmp_path: Path, index_url: str) -> None:
    """It is kept in the cache, from where it is taken when the index is gone."""
    other = _wheel("1.0").replace("x86_64", "aarch64")
    _index(tmp_path / "index", [_sdist("1.0"), _wheel("1.0"), other, _wheel("2.0")])
    releases = _releases(tmp_path, index_url=index_url)

    found = releases.matching(Requirement("vllm==1.0"))

    assert _names(found) == [f"cache/{_sdist('1.0')}"]
    assert found[0].path.read_text() == f"vllm/{_sdist('1.0')}"
    assert _releases(tmp_path).matching(Requirement("vllm==1.0")) == found
    assert [each.name for each in (tmp_path / "cache").iterdir()] == [_sdist("1.0")]


def test_a_range_takes_what_the_index_has_too(tmp_path: Path, index_url: str) -> None:
    """Releases of a folder are not downloaded; those of the index that are missing are."""
    _index(tmp_path / "index", [_wheel("1.0"), _wheel("2.0"), _sdist("3.0rc1")])
    folder = _folder(tmp_path / "wheels", _wheel("1.5"), _wheel("2.0"))

    found = _releases(tmp_path, folder, index_url=index_url).matching(Requirement("vllm>=1.0"))

    assert _names(found) == [
        f"cache/{_wheel('1.0')}",
        f"wheels/{_wheel('1.5')}",
        f"wheels/{_wheel('2.0')}",
    ]


def test_a_candidate_is_taken_where_it_is_named(tmp_path: Path, index_url: str) -> None:
    """Folders and the index agree on that."""
    _index(tmp_path / "index", [_sdist("1.0rc1"), _sdist("1.0")])
    folder = _folder(tmp_path / "wheels", _wheel("1.0rc2"))
    releases = _releases(tmp_path, folder, index_url=index_url)

    found = releases.matching(Requirement("vllm>=1.0rc1"))

    assert [str(each.version) for each in found] == ["1.0rc1", "1.0rc2", "1.0"]


def test_an_index_in_a_folder_is_read_where_it_is(tmp_path: Path) -> None:
    """A file that is there already is not copied, nor moved."""
    _index(tmp_path / "index", [_sdist("1.0")])
    releases = _releases(tmp_path, index_url=(tmp_path / "index").as_uri())

    found = releases.matching(Requirement("vllm==1.0"))

    assert _names(found) == [f"vllm/{_sdist('1.0')}"]
    assert found[0].path.is_file()


def test_the_newest_release_is_no_candidate(tmp_path: Path, index_url: str) -> None:
    """It may be of the index or of a folder."""
    _index(tmp_path / "index", [_sdist("1.9"), _sdist("1.10"), _sdist("2.0rc1")])
    folder = _folder(tmp_path / "wheels", _wheel("1.10.1"), _wheel("1.11rc1"))

    assert str(_releases(tmp_path, index_url=index_url).newest("vllm").version) == "1.10"
    assert str(_releases(tmp_path, folder, index_url=index_url).newest("vllm").version) == "1.10.1"
    assert str(_releases(tmp_path, folder, is_offline=True).newest("vllm").version) == "1.10.1"


def test_no_newest_release_is_an_error(tmp_path: Path) -> None:
    """A candidate is none."""
    folder = _folder(tmp_path / "wheels", _wheel("1.0rc1"))

    with pytest.raises(ReleaseError) as raised:
        _releases(tmp_path, folder, is_offline=True).newest("vllm")

    assert raised.value.code == "release-not-found"


def test_releases_before_one_are_those_of_the_folders(tmp_path: Path) -> None:
    """The newest comes first, and nothing is downloaded."""
    folder = _folder(tmp_path / "wheels", *map(_wheel, ("1.0", "3.0", "2.0")))

    found = _releases(tmp_path, folder).before("vllm", Version("3.0"))

    assert [str(each.version) for each in found] == ["2.0", "1.0"]


def test_an_index_that_has_no_such_release_is_an_error(tmp_path: Path, index_url: str) -> None:
    """The error lists those that the folders have."""
    folder = _folder(tmp_path / "wheels", _wheel("2.0"), _wheel("1.0"))
    releases = _releases(tmp_path, folder, index_url=index_url)

    assert _refused(releases, "vllm==9.0").message == (
        f"no release 'vllm==9.0' is in {folder}, {tmp_path / 'cache'}, nor in the index; expected "
        "one of them: there 1.0, 2.0. Name another, or a folder that has it: --releases FOLDER."
    )


def test_a_release_that_is_not_there_offline_is_an_error(tmp_path: Path) -> None:
    """The error says that the index was not asked."""
    assert _refused(_releases(tmp_path, is_offline=True), "vllm").message == (
        f"no release 'vllm' is in {tmp_path / 'cache'}, and the index is not asked (--offline); "
        "expected one of them: there is none. Name another, or a folder that has it: "
        "--releases FOLDER."
    )


def test_an_index_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    """Releases may be had from a folder instead."""
    error = _refused(_releases(tmp_path), "vllm==1.0")

    assert error.code == "release-not-downloaded"
    assert error.message.startswith(f"vllm==1.0 cannot be downloaded from {NOWHERE}: ")
    assert "Connection refused" in error.message


def test_a_download_that_is_not_what_was_promised_is_an_error(
    tmp_path: Path, index_url: str
) -> None:
    """Nothing of it is kept."""
    _index(tmp_path / "index", [_sdist("1.0")], digest="0" * 64)

    error = _refused(_releases(tmp_path, index_url=index_url), "vllm==1.0")

    assert error.code == "release-not-downloaded"
    assert error.message.startswith(f"vllm 1.0 cannot be downloaded from {index_url}: ")
    assert [*(tmp_path / "cache").iterdir()] == []


def test_a_download_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, releases in folders can be read."""
    monkeypatch.setattr(extras, "find_spec", lambda _: None)

    with pytest.raises(MissingExtraError) as raised:
        _releases(tmp_path).matching(Requirement("vllm==1.0"))

    assert raised.value.message.endswith("pip install 'backend-caps[fits]'")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("vllm==1.0", True), ("vllm==1.*", False), ("vllm>=1.0", False), ("vllm", False),
     ("vllm==1.0,!=1.1", False)],
)  # fmt: skip
def test_a_requirement_is_exact_if_it_takes_one_version(wanted: str, expected: bool) -> None:
    """Of any other, the index may have more."""
    assert is_exact(Requirement(wanted)) is expected
