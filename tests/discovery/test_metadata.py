"""Names, versions and requirements of distributions."""

from __future__ import annotations

import pytest

from backend_caps.discovery.metadata import headers, named


@pytest.mark.parametrize(
    ("folder", "root", "expected"),
    [
        pytest.param("My_Pkg-1.0.dist-info", "/s", ("my-pkg", "1.0"), id="dist-info"),
        pytest.param("my.pkg-1.0.dist-info", "/s", ("my-pkg", "1.0"), id="dots"),
        pytest.param("my-a-1.0.dist-info", "/s", ("my-a", "1.0"), id="dash-against-the-rules"),
        pytest.param("my_pkg.dist-info", "/s", ("my-pkg", None), id="no-version"),
        pytest.param("my_pkg.egg-info", "/s", ("my-pkg", None), id="develop"),
        pytest.param("my_pkg-1.0-py3.11.egg-info", "/s", ("my-pkg", "1.0"), id="egg-info"),
        pytest.param("EGG-INFO", "/s/my_pkg-1.0-py3.11.egg", ("my-pkg", "1.0"), id="egg"),
    ],
)
def test_named_reads_the_name_off_the_folder(
    folder: str, root: str, expected: tuple[str, str | None]
) -> None:
    """A metadata folder names its distribution, however the name is spelled."""
    actual = named(folder, root)

    assert actual == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(
            b"Name: My_Pkg\nVersion: 3\nRequires-Dist: torch\n"
            b"Requires-Dist: Backend_Caps (>=0.1, <2)\n\nName: body\n",
            ("my-pkg", "3", "backend-caps>=0.1,<2"),
            id="whole",
        ),
        pytest.param(b"", ("folder", "1.0", None), id="missing"),
        pytest.param(b"\xff\xfe: x\nVersion: 2\n", ("folder", "2", None), id="not-utf8"),
        pytest.param(
            b"Requires-Dist: backend-caps-triton>1\n", ("folder", "1.0", None), id="namesake"
        ),
    ],
)
def test_headers_fall_back_on_what_the_folder_says(
    data: bytes, expected: tuple[str, str | None, str | None]
) -> None:
    """Core metadata is read up to its body; what it lacks stays as it was."""
    actual = headers(data, "folder", "1.0")

    assert actual == expected
