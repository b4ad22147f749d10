"""Source distributions and revisions, unpacked as far as they are read."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from backend_caps.compatibility.archives import ArchiveError, unpacked
from tests.unit.compatibility.distributions import write_checkout, write_sdist

FILES = {
    "PKG-INFO": "Version: 1.0",
    "pyproject.toml": "",
    "src/acme/__init__.py": "x = 1",
    "src/acme/kernel.cu": "int x;",
    "src/acme.egg-info/entry_points.txt": "",
    "src/acme.egg-info/requires.txt": "vllm",
}
READ = sorted(FILES.keys() - {"src/acme/kernel.cu"})


def _files(root: Path) -> list[str]:
    return sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file())


def _refused(source: Path, revision: str | None = None) -> ArchiveError:
    """Return the error of what cannot be unpacked."""
    with pytest.raises(ArchiveError) as raised, unpacked(source, revision):
        pass
    return raised.value


def test_a_source_distribution_is_unpacked_as_far_as_it_is_read(tmp_path: Path) -> None:
    """Python files and metadata are; the folder of its name is the root, and goes at the end."""
    sdist = write_sdist(tmp_path, "acme-1.0", FILES)

    with unpacked(sdist) as root:
        assert (root.name, _files(root)) == ("acme-1.0", READ)
        assert (root / "src/acme/__init__.py").read_text() == "x = 1"

    assert not root.exists()


def test_an_archive_without_a_folder_of_its_own_is_the_root(tmp_path: Path) -> None:
    """Files at the top stand where they were put."""
    path = tmp_path / "acme.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("a/__init__.py", "setup.py"):
            archive.addfile(tarfile.TarInfo(name))

    with unpacked(path) as root:
        assert _files(root) == ["a/__init__.py", "setup.py"]


@pytest.mark.parametrize("name", ["acme", "acme-1.0-py3-none-any.whl"])
def test_a_folder_or_a_wheel_is_read_where_it_is(tmp_path: Path, name: str) -> None:
    """Neither has to be unpacked."""
    with unpacked(tmp_path / name) as root:
        assert root == tmp_path / name


def test_a_revision_is_unpacked_without_what_came_later(tmp_path: Path) -> None:
    """A checkout is read as it was; what stands in its folder does not matter."""
    checkout = write_checkout(tmp_path / "acme", FILES, tag="v1")
    write_checkout(checkout, {"later.py": ""}, tag="v2")
    (checkout / "setup.py").touch()

    with unpacked(checkout, "v1") as root:
        assert (root.name, _files(root)) == ("acme", READ)
    with unpacked(checkout, "v2") as root:
        assert _files(root) == sorted([*READ, "later.py"])


def test_a_folder_in_a_checkout_has_revisions_of_its_own_files(tmp_path: Path) -> None:
    """A plugin may be one of several in a repository."""
    checkout = write_checkout(tmp_path, {"one/a.py": "", "other/b.py": ""}, tag="v1")

    with unpacked(checkout / "one", "v1") as root:
        assert (root.name, _files(root)) == ("one", ["a.py"])


def test_a_revision_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The error has what git says of it."""
    error = _refused(write_checkout(tmp_path, {"a.py": ""}, tag="v1"), "v2")

    assert error.code == "revision-not-found"
    assert error.message.startswith(f"revision 'v2' of {tmp_path} cannot be read: ")
    assert "fatal: not a valid object name: v2" in error.message


def test_a_machine_without_git_has_no_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))

    error = _refused(tmp_path, "v1")

    assert error.code == "revision-not-found"
    assert "No such file or directory: 'git'" in error.message


def _truncated(sdist: Path) -> bytes:
    packed = sdist.read_bytes()
    return packed[: len(packed) // 2]


def _overwritten(sdist: Path) -> bytes:
    text = gzip.decompress(sdist.read_bytes())
    packer = zlib.compressobj(wbits=31)
    kept = packer.compress(text[: len(text) // 2]) + packer.flush(zlib.Z_FULL_FLUSH)
    return kept + b"\xff" * 1000  # which no block begins with


def _unzipped(sdist: Path) -> bytes:
    return gzip.decompress(sdist.read_bytes())


def _with(member: tarfile.TarInfo) -> bytes:
    """Pack the header of a file, without what it should have in it."""
    return gzip.compress(member.tobuf())


def _outside(_: Path) -> bytes:
    return _with(tarfile.TarInfo("acme/../../evil.py"))


def _bomb(_: Path) -> bytes:
    member = tarfile.TarInfo("acme/a.py")
    member.size = 3 * 10**9
    return _with(member)


DAMAGES = [
    pytest.param(_truncated, "unexpected end of data", id="truncated"),
    pytest.param(_overwritten, "invalid compressed data", id="overwritten"),
    pytest.param(_unzipped, "not a gzip file", id="not compressed"),
    pytest.param(_outside, "outside the destination", id="a file outside of its folder"),
    pytest.param(_bomb, "it has more than 2,000,000,000 bytes", id="a file that is too large"),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES)
def test_a_damaged_source_distribution_is_an_error(
    tmp_path: Path, damage: Callable[[Path], bytes], expected: str
) -> None:
    """Nothing outside of a folder of its own is written, and no more than fits."""
    sdist = write_sdist(tmp_path, "acme-1.0", {"a.py": "".join(map(chr, range(1000, 9000)))})
    sdist.write_bytes(damage(sdist))

    error = _refused(sdist)

    assert error.code == "archive-damaged"
    assert error.message.startswith(f"{sdist} cannot be unpacked: ")
    assert re.search(expected, error.message), error.message
