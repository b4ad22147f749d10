"""Files of metadata, whatever stands under their names, and the codes of problems."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from backend_caps.capability.provenance import problem_texts
from backend_caps.discovery import scan as discovery_scan
from backend_caps.discovery.metadata import LARGEST_BYTES, read_regular
from backend_caps.discovery.process import Search
from backend_caps.discovery.scan import scan
from backend_caps.engines import reading
from backend_caps.resolution import errors
from tests.discovery.conftest import Site

_NO_FILE = "it is no file, nor a link to one"


def _sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(LARGEST_BYTES + 1)


@pytest.mark.parametrize(
    ("put", "cause"),
    [
        pytest.param(os.mkfifo, _NO_FILE, id="pipe"),
        pytest.param(lambda file: file.symlink_to("/dev/zero"), _NO_FILE, id="endless-device"),
        pytest.param(_sparse, "it has more than 5,000,000 bytes", id="too-large"),
    ],
)
@pytest.mark.parametrize("name", ["entry_points.txt", "METADATA"])
def test_scan_does_not_read_what_has_no_end(
    site: Site, put: Callable[[Path], None], cause: str, name: str
) -> None:
    """A pipe, a device and a file without measure are problems, and hold nothing up."""
    info = site.install(
        entry_points=None if name == "entry_points.txt" else "[backend_caps.x]\na=b"
    )
    put(info / name)

    problems = [problem.message for problem in site.scan().problems]

    assert problems == [f"'{info / name}' cannot be read: {cause}."]


def test_scan_does_not_wait_for_a_path_entry_that_is_a_pipe(tmp_path: Path) -> None:
    """A pipe on the path is no archive."""
    os.mkfifo(tmp_path / "bundle.zip")

    assert scan(Search.of_folders([tmp_path / "bundle.zip"])).claims == []


@pytest.mark.parametrize(
    ("method", "cause"),
    [
        pytest.param(zipfile.ZIP_DEFLATED, "it has more than 5,000,000 bytes", id="too-large"),
        pytest.param(zipfile.ZIP_BZIP2, "it is packed by method 12, no wheel's", id="unbounded"),
    ],
)
def test_scan_unpacks_no_more_than_the_limit(tmp_path: Path, method: int, cause: str) -> None:
    """A small archive may hold a file that unpacks to any size."""
    file = tmp_path / "bundle.zip"
    with zipfile.ZipFile(file, "w", compression=method) as opened:
        opened.writestr("acme-1.0.dist-info/entry_points.txt", bytes(LARGEST_BYTES + 1))

    (problem,) = scan(Search.of_folders([file])).problems

    assert problem.message.endswith(f"cannot be read: {cause}.")


def test_regular_file_at_the_limit_is_read(tmp_path: Path) -> None:
    """The limit is the largest size that is read, not the first that is refused."""
    (tmp_path / "file").write_bytes(b"12345")

    assert read_regular(str(tmp_path / "file"), 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(str(tmp_path / "file"), 4)


@pytest.mark.parametrize("module", [reading, errors, discovery_scan], ids=lambda own: own.__name__)
def test_codes_are_sorted(module: ModuleType) -> None:
    """The reference lists them in the order of the table."""
    assert module.__file__ is not None
    codes = [*problem_texts(module.__file__)]

    assert codes == sorted(codes)
