"""Where an attribute of a module is written."""

from __future__ import annotations

import sys
import zipfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from backend_caps.discovery.loading_child import source_line


def module_of(source: str, tmp_path: Path) -> ModuleType:
    """Make a module that says it comes from a file with this source."""
    file = tmp_path / "caps.py"
    file.write_text(source)
    module = ModuleType("caps")
    module.__file__ = str(file)
    return module


@pytest.mark.parametrize(
    ("source", "attribute", "line"),
    [
        pytest.param("A = 1\n", "A", 1, id="assignment"),
        pytest.param("A = (\n1\n)\n", "A", 1, id="over-several-lines"),
        pytest.param("A = 1\nA = 2\n", "A", 2, id="the-last-binding"),
        pytest.param("A: int = 1\n", "A", 1, id="annotated"),
        pytest.param("B, A = 1, 2\n", "A", 1, id="unpacked"),
        pytest.param("try:\n  A = 1\nexcept E:\n  A = 2\n", "A", 4, id="in-a-branch"),
        pytest.param("def f():\n  A = 1\nA = 2\n", "A", 3, id="not-in-a-function"),
        pytest.param("from b import A\n", "A", 1, id="import"),
        pytest.param("from b import B as A\n", "A", 1, id="renamed-import"),
        pytest.param("class Box:\n  A = 1\n", "Box.A", 2, id="in-a-class"),
        pytest.param("class Box(Base):\n  B = 1\n", "Box.A", 1, id="inherited-in-a-class"),
        pytest.param("def A(): ...\n", "A", 1, id="function"),
    ],
)
def test_source_line_finds_the_last_binding(
    tmp_path: Path, source: str, attribute: str, line: int
) -> None:
    """The line is where the module binds the name that counts."""
    module = module_of(source, tmp_path)

    actual = source_line(module, attribute)

    assert actual == f"{module.__file__}:{line}"


def test_source_line_names_the_file_where_the_source_does_not_say(tmp_path: Path) -> None:
    """A name that is bound by no statement has a file and no line."""
    module = module_of("globals()['A'] = 1\n", tmp_path)

    actual = source_line(module, "A")

    assert actual == module.__file__


def test_source_line_is_none_for_a_module_without_a_file() -> None:
    """A built-in module is nowhere."""
    assert source_line(sys, "path") is None


def test_source_line_reads_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in a zip has lines too."""
    archive = tmp_path / "caps.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("zipped_caps.py", "\nA = 1\n")
    monkeypatch.syspath_prepend(archive)

    actual = source_line(import_module("zipped_caps"), "A")

    assert actual == f"{archive}/zipped_caps.py:2"
