"""Reading the files of folders, wheels and installed packages."""

from __future__ import annotations

import io
import os
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend_caps.engines.ahead import in_forks
from backend_caps.engines.reading import EngineError
from backend_caps.engines.source.files import LARGEST_BYTES, Tree, open_tree
from tests.unit.engines.source.trees import (
    METADATA,
    PACKAGE,
    VERSION,
    write_folder,
    write_package,
    write_wheel,
)
from tests.unit.engines.tables import table

INIT = f"{PACKAGE}/__init__.py"
MODULE = f"{PACKAGE}/m.py"


def _told(tree: Tree) -> list[tuple[str, str]]:
    return [(problem.code, problem.message) for problem in tree.problems]


@pytest.mark.parametrize("inner", ["", "python", "src"])
def test_package_is_found_in_a_folder_or_a_checkout(tmp_path: Path, inner: str) -> None:
    """A folder that has the package, a checkout's `python/` and its `src/` are all read."""
    write_package(tmp_path / inner, m="A = 1")

    tree = open_tree(PACKAGE, tmp_path)

    assert (dict(tree.files), tree.source) == ({INIT: b"", MODULE: b"A = 1"}, tmp_path.name)


@pytest.mark.parametrize("name", [PACKAGE, "link"])
def test_the_package_folder_itself_is_read(tmp_path: Path, name: str) -> None:
    """The folder that is the package is taken too, also by a link of another name."""
    write_package(tmp_path, m="A = 1")
    (tmp_path / "link").symlink_to(tmp_path / PACKAGE)

    assert sorted(open_tree(PACKAGE, tmp_path / name).files) == [INIT, MODULE]


def test_only_wanted_files_are_read(tmp_path: Path) -> None:
    """What is outside of what is asked for, and what is no Python, stays closed."""
    write_folder(tmp_path, {INIT: "", f"{PACKAGE}/in/a.py": "", f"{PACKAGE}/in/b.json": ""})

    tree = open_tree(PACKAGE, tmp_path, within=lambda path: path.startswith(f"{PACKAGE}/in/"))

    assert (list(tree.files), tree.problems) == ([f"{PACKAGE}/in/a.py"], [])


def test_line_ends_are_those_that_the_parser_counts(tmp_path: Path) -> None:
    """Windows' and old Macs' line ends become the one that lines are counted by."""
    write_package(tmp_path, m=b"a\r\nb\rc\n")

    assert open_tree(PACKAGE, tmp_path).files[MODULE] == b"a\nb\nc\n"


@table("source_files", "source_without_the_engine_is_an_error")
def test_source_without_the_engine_is_an_error(tmp_path: Path, source: str, words: str) -> None:
    """What neither has the engine nor can be opened is reported as one documented error."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "text.whl").write_text("no zip")
    (tmp_path / "nothing.whl").write_bytes(b"PK\x05\x06" + bytes(18))
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    whole = write_wheel(tmp_path, {METADATA: VERSION}).read_bytes()
    (tmp_path / "cut.whl").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(EngineError) as raised:
        open_tree(PACKAGE, tmp_path / source)

    assert raised.value.code == "engine-source-unusable"
    assert str(raised.value).startswith(f"{tmp_path / source} {words}; expected a wheel of engine")


@pytest.mark.parametrize("is_wheel", [False, True], ids=["folder", "wheel"])
def test_file_over_the_limit_is_a_problem(tmp_path: Path, is_wheel: bool) -> None:
    """A file of more bytes than are read is named, and the rest is read."""
    texts = {INIT: b"", MODULE: b"#" * (LARGEST_BYTES + 1), f"{PACKAGE}/n.py": b"A = 1"}
    source = write_wheel(tmp_path, texts) if is_wheel else write_folder(tmp_path, texts)

    tree = open_tree(PACKAGE, source)

    assert sorted(tree.files) == [INIT, f"{PACKAGE}/n.py"]
    words = f"{MODULE} has more than the 5,000,000 bytes that are read."
    assert ("engine-file-too-large", words) in _told(tree)


def test_file_of_the_limit_is_read(tmp_path: Path) -> None:
    """As many bytes as the limit are not too many."""
    write_package(tmp_path, m=b"#" * LARGEST_BYTES)

    tree = open_tree(PACKAGE, tmp_path)

    assert (len(tree.files[MODULE]), tree.problems) == (LARGEST_BYTES, [])


def test_the_files_of_one_source_are_limited_together() -> None:
    """Many files that are each small enough cannot fill the memory."""
    tree = Tree(package=PACKAGE, source="here", num_bytes_left=100_000)

    large = partial(io.BytesIO, b"#" * 70_000)
    tree.add(dict.fromkeys(("a.py", "b.py", "c.py"), large), lazily=False)

    assert list(tree.files) == ["a.py"]
    assert [problem.code for problem in tree.problems] == ["engine-file-too-large"] * 2


@pytest.mark.parametrize("write", [write_wheel, write_folder])
def test_lazy_tree_has_the_same_texts(
    write: Callable[[Path, Mapping[str, str | bytes]], Path], tmp_path: Path
) -> None:
    """Each is read when it is asked for, once; one that cannot be read is empty, and a problem."""
    source = write(tmp_path, {INIT: b"A = 1\r\n", MODULE: b"#" * (LARGEST_BYTES + 1)})

    tree = open_tree(PACKAGE, source, lazily=True)

    assert sorted(tree.files) == [INIT, MODULE]
    assert (len(tree.files), MODULE in tree.files, "other.py" in tree.files) == (2, True, False)
    assert "engine-file-too-large" not in {problem.code for problem in tree.problems}
    assert [tree.files[path] for path in (INIT, MODULE, MODULE)] == [b"A = 1\n", b"", b""]
    assert [p.code for p in tree.problems].count("engine-file-too-large") == 1


def test_forks_read_a_lazy_wheel_at_once(tmp_path: Path) -> None:
    """They do not share a position in its file."""
    texts = {f"{PACKAGE}/m{n}.py": str(n) * 600_000 for n in range(12)}
    tree = open_tree(PACKAGE, write_wheel(tmp_path, {INIT: "", **texts}), lazily=True)

    def follow(paths: Sequence[str]) -> list[str]:
        return [path for path in paths if tree.files[path].decode() != texts[path]]

    found = dict(in_forks(follow, [[*texts]] * 8))

    assert [*found.values()] == [[]] * 8


def _lying(wheel: bytes) -> bytes:
    """Write other sizes into a wheel, of each entry that has more than the limit."""
    true = (30 * LARGEST_BYTES).to_bytes(4, "little")
    return wheel.replace(true, (1_000).to_bytes(4, "little"))


def test_wheel_entry_that_lies_about_its_size_is_not_unpacked(tmp_path: Path) -> None:
    """A zip bomb is unpacked up to the limit at most, whatever size it names."""
    wheel = write_wheel(tmp_path, {MODULE: bytes(30 * LARGEST_BYTES)}, changed=_lying)
    tracemalloc.start()

    tree = open_tree(PACKAGE, wheel)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * LARGEST_BYTES
    assert _told(tree) == [
        ("engine-file-unreadable", f"{MODULE} cannot be read: Bad CRC-32 for file {MODULE!r}.")
    ]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_wheel_entry_of_an_unbounded_method_is_not_unpacked(tmp_path: Path, method: int) -> None:
    """What unpacks in one piece only is not unpacked."""
    tree = open_tree(PACKAGE, write_wheel(tmp_path, {MODULE: "A = 1"}, method=method))

    told = f"{MODULE} cannot be read: it is packed by method {method}, no wheel's."
    assert ("engine-file-unreadable", told) in _told(tree)


def _encrypted(wheel: bytes) -> bytes:
    """Set the flag of the last entry that says that it is encrypted, in both its headers."""
    changed = bytearray(wheel)
    changed[wheel.rindex(b"PK\x03\x04") + 6] |= 1
    changed[wheel.rindex(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


def test_encrypted_entry_is_a_problem(tmp_path: Path) -> None:
    """An entry that asks for a password is named, and the rest is read."""
    tree = open_tree(PACKAGE, write_wheel(tmp_path, {MODULE: "A = 1"}, changed=_encrypted))

    assert list(tree.files) == [INIT]
    assert [(each.code, MODULE in each.message) for each in tree.problems] == [
        ("engine-file-unreadable", True)
    ]


@table("source_files", "path_out_of_a_wheel_is_named_and_not_opened")
def test_path_out_of_a_wheel_is_named_and_not_opened(tmp_path: Path, path: str) -> None:
    """A path that is none inside the wheel is reported, on any system."""
    tree = open_tree(PACKAGE, write_wheel(tmp_path, {path: "A = 1", MODULE: "B = 1"}))

    assert sorted(tree.files) == [INIT, MODULE]
    words = f"the wheel holds {path!r}, which is no path inside it; it was not read."
    assert _told(tree) == [("engine-path-unsafe", words)]


def test_repeated_entry_of_a_wheel_is_a_problem(tmp_path: Path) -> None:
    """Of a file that a wheel holds twice the last is read, as it is installed, and reported."""
    tree = open_tree(PACKAGE, write_wheel(tmp_path, {INIT: "LAST = 1"}))

    told = f"the wheel holds {INIT!r} more than once; the last one was read."
    assert tree.files[INIT] == b"LAST = 1"
    assert _told(tree) == [("engine-file-repeated", told)]


def test_what_is_no_file_is_a_problem(tmp_path: Path) -> None:
    """A link to nothing, to itself, and a pipe are named; they do not hold up the reading."""
    folder = write_package(tmp_path) / PACKAGE
    (folder / "dangling.py").symlink_to(folder / "nothing")
    (folder / "loop.py").symlink_to(folder / "loop.py")
    os.mkfifo(folder / "pipe.py")

    tree = open_tree(PACKAGE, tmp_path)

    words = "it is no file, nor a link to one"
    assert [problem.message for problem in tree.problems] == [
        "engine/dangling.py cannot be read: No such file or directory.",
        "engine/loop.py cannot be read: Too many levels of symbolic links.",
        f"engine/pipe.py cannot be read: {words}.",
    ]


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    """A link to a folder, which may be a circle, is named; a folder of a file's name is read."""
    folder = write_folder(tmp_path, {INIT: "", f"{PACKAGE}/x.py/a.py": "A = 1"}) / PACKAGE
    (folder / "loop").symlink_to(folder)

    tree = open_tree(PACKAGE, tmp_path)

    assert sorted(tree.files) == [INIT, f"{PACKAGE}/x.py/a.py"]
    assert [problem.message for problem in tree.problems] == [
        "engine/loop/ cannot be read: links to folders are not followed."
    ]


def test_file_with_a_name_of_bytes_is_read(tmp_path: Path) -> None:
    """A name that is no text is written as one."""
    folder = write_package(tmp_path) / PACKAGE
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.py")).write_text("A = 1")

    assert set(open_tree(PACKAGE, tmp_path).files) == {INIT, f"{PACKAGE}/\\udcff.py"}


@pytest.mark.parametrize(
    ("texts", "version"),
    [
        pytest.param({METADATA: VERSION}, "1.0", id="metadata"),
        pytest.param({METADATA: "Name: engine\n"}, None, id="metadata without it"),
        pytest.param({METADATA: b"Version: \xff\n"}, "\ufffd", id="metadata of bytes"),
        pytest.param({METADATA: bytes(LARGEST_BYTES + 1)}, None, id="metadata that is too large"),
        pytest.param({f"{PACKAGE}/version.py": "__version__ = '1.1'"}, "1.1", id="version.py"),
        pytest.param(
            {f"{PACKAGE}/_version.py": "__version__: str\n__version__ = version = '1.2'  # x"},
            "1.2",
            id="_version.py",
        ),
        pytest.param({f"{PACKAGE}/version.py": "__version__ = of()"}, None, id="computed"),
        pytest.param({}, None, id="unknown"),
    ],
)
@pytest.mark.parametrize("is_wheel", [False, True], ids=["folder", "wheel"])
def test_version_is_what_the_source_says(
    tmp_path: Path, texts: dict[str, str | bytes], version: str | None, is_wheel: bool
) -> None:
    """The version is of the metadata, else a constant of the package's own, else unknown."""
    if is_wheel:
        source = write_wheel(tmp_path, texts)
    else:
        source = write_folder(tmp_path, {INIT: "", **texts})

    assert open_tree(PACKAGE, source, within=lambda path: path == INIT).version == version


def test_version_of_two_distributions_is_unknown(tmp_path: Path) -> None:
    """Where two versions' metadata stand beside a package, neither is taken for it."""
    write_package(tmp_path)
    for version in ("1.0", "2.0"):
        write_folder(tmp_path, {f"engine-{version}.dist-info/METADATA": f"Version: {version}\n"})

    assert open_tree(PACKAGE, tmp_path).version is None


def test_installed_package_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a source, the folder is read that an import would take."""
    write_folder(write_package(tmp_path), {METADATA: VERSION})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    tree = open_tree(PACKAGE, None)

    assert (list(tree.files), tree.version, tree.source) == ([INIT], "1.0", "installed")


def test_editable_package_is_found_by_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that a hook would import from is found where PEP 610 says, not by the hook."""
    checkout = write_package(tmp_path / "check out" / "python").parent
    url = f'{{"url": "{checkout.as_uri()}", "dir_info": {{"editable": true}}}}'
    link = "engine-1.0.dist-info/direct_url.json"
    site = write_folder(tmp_path / "site", {METADATA: VERSION, link: url})
    monkeypatch.setattr(sys, "path", [str(site)])

    tree = open_tree(PACKAGE, None)

    assert (list(tree.files), tree.version) == ([INIT], "1.0")


def test_namespace_package_is_read_if_it_has_wanted_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without `__init__.py` is a package as well."""
    write_folder(tmp_path, {f"{PACKAGE}/inner/m.py": "A = 1"})
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    assert list(open_tree(PACKAGE, None).files) == [f"{PACKAGE}/inner/m.py"]


@table("source_files", "engine_that_is_nowhere_is_not_installed")
def test_engine_that_is_nowhere_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    """A folder of the engine's name without Python, and a lost checkout, are no engine."""
    write_folder(tmp_path, {f"{PACKAGE}/README": "", "engine-1.0.dist-info/direct_url.json": link})
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "nowhere")])

    with pytest.raises(EngineError, match="is installed here"):
        open_tree(PACKAGE, None)


@pytest.mark.parametrize("file", ["direct_url.json", "METADATA"])
def test_metadata_that_is_a_pipe_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """What stands beside an installed engine is read where it is a regular file alone."""
    site = write_package(tmp_path)
    (site / "engine-1.0.dist-info").mkdir()
    os.mkfifo(site / "engine-1.0.dist-info" / file)
    monkeypatch.setattr(sys, "path", [str(site)])

    assert open_tree(PACKAGE, None).version is None


def test_source_that_is_a_pipe_is_no_wheel(tmp_path: Path) -> None:
    """A wheel that is named on the command line is read where it is a regular file alone."""
    os.mkfifo(tmp_path / "engine.whl")

    with pytest.raises(EngineError, match="it is no file, nor a link to one"):
        open_tree(PACKAGE, tmp_path / "engine.whl")


def test_folder_that_cannot_be_listed_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without permission is named; the rest is read."""
    write_folder(tmp_path, {INIT: "", f"{PACKAGE}/closed/a.py": ""})
    whole = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return whole(path)

    monkeypatch.setattr(os, "scandir", scandir)

    tree = open_tree(PACKAGE, tmp_path)

    words = "engine/closed/ cannot be read: Permission denied."
    assert (list(tree.files), _told(tree)) == ([INIT], [("engine-file-unreadable", words)])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_wheel_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever byte of a wheel is changed or cut, it is read, or refused with our error."""
    wheel = write_wheel(tmp_path, {MODULE: "class A: pass\n" * 9, METADATA: VERSION})
    damaged = bytearray(wheel.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), max_size=4)):
        damaged[at] ^= data.draw(st.integers(1, 255))
    wheel.write_bytes(damaged[: data.draw(st.sampled_from([None, len(damaged) - 5]))])

    with suppress(EngineError):
        open_tree(PACKAGE, wheel)


def test_damaged_data_of_a_wheel_is_a_problem(tmp_path: Path) -> None:
    """A file whose packed bytes are no longer what was packed is named."""
    packed = zlib.compress(b"A = 1\n" * 99, wbits=-15)
    wheel = write_wheel(
        tmp_path,
        {MODULE: b"A = 1\n" * 99},
        changed=lambda whole: whole.replace(packed[:9], b"\xff" * 9),
    )

    tree = open_tree(PACKAGE, wheel)

    assert [problem.code for problem in tree.problems] == ["engine-file-unreadable"]
