"""Our entries in an `entry_points.txt`, and the headers of core metadata."""

from __future__ import annotations

import pytest

from backend_caps.discovery.metadata import Entry, headers, named, our_entries, target

GROUP = "backend_caps.backends"
OURS = b"[backend_caps.backends]\nfa3 = a:B\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(OURS, id="plain"),
        pytest.param(b"[x]\ny\n= z\n" + OURS, id="bad-line-elsewhere"),
        pytest.param(b"[x]\n\xff = \xfe\n" + OURS, id="not-utf8"),
        pytest.param(b"\xef\xbb\xbf" + OURS, id="byte-order-mark"),
        pytest.param(OURS.replace(b"\n", b"\r\n"), id="windows-line-ends"),
        pytest.param(b"[backend_caps.backends]\n# x\n; y\n\n fa3 = a:B", id="comments-and-blanks"),
        pytest.param(b"fa2 = a:B\n" + OURS, id="line-before-any-header"),
        pytest.param(b"[DEFAULT]\nleak = a:B\n" + OURS, id="default-section"),
        pytest.param(b"[x]\na=%(b)s\n" + OURS, id="interpolation"),
        pytest.param(b"[x]\na=b:c\na=b:c\n" + OURS, id="duplicate-key"),
        pytest.param(OURS + b"[broken\nx = a:B\n", id="broken-header"),
        pytest.param(b"[backend_caps_extras.x]\nx = a:B\n" + OURS, id="namesake"),
    ],
)
def test_our_entries_are_read_whatever_else_the_file_holds(data: bytes) -> None:
    """Only the lines of our sections count."""
    actual = [(entry.group, entry.name, entry.value, entry.is_valid) for entry in our_entries(data)]

    assert actual == [(GROUP, "fa3", "a:B", True)]


@pytest.mark.parametrize(
    ("line", "text", "name", "value"),
    [
        pytest.param(b"fa3", "fa3", None, "", id="no-equals-sign"),
        pytest.param(b"= a:B", "= a:B", None, "", id="no-name"),
        pytest.param(b"fa3 = %(x)s", "fa3 = %(x)s", "fa3", "%(x)s", id="interpolation"),
        pytest.param(b"fa3 = a:\xff", "fa3 = a:\\xff", "fa3", "a:\\xff", id="not-utf8"),
        pytest.param(b"fa3 = a", "fa3 = a", "fa3", "a", id="no-attribute"),
    ],
)
def test_our_entries_keep_a_malformed_line_as_it_is(
    line: bytes, text: str, name: str | None, value: str
) -> None:
    """A line that cannot be read is reported with its number, and nothing is lost."""
    data = b"[backend_caps.backends]\n" + line + b"\nfa4 = a:B\n"

    first, second = our_entries(data)

    assert (first.group, first.line, first.is_valid) == (GROUP, 2, False)
    assert (first.text, first.name, first.value) == (text, name, value)
    assert second.name == "fa4"


def test_our_entries_are_those_of_a_near_miss_too() -> None:
    """A section whose name is almost ours is somebody's mistake, and not nobody's."""
    (entry,) = our_entries(OURS.replace(b"_", b"-"))

    assert (entry.group, entry.name) == ("backend-caps.backends", "fa3")


def test_our_entries_tell_a_header_of_ours_that_is_not_closed() -> None:
    """A section of ours whose header lacks its bracket does not vanish unsaid."""
    data = b"[backend_caps.backends\nfa3 = a:B\n"

    first = next(our_entries(data))

    assert first == Entry(group=GROUP, line=1, text="[backend_caps.backends", is_valid=False)


def test_target_leaves_extras_out() -> None:
    """An entry's extras say nothing about where its object is."""
    assert target("acme.caps:Box.DECLARATION [gpu]") == ("acme.caps", "Box.DECLARATION")


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
    assert named(folder, root) == expected


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
    assert headers(data, "folder", "1.0") == expected
