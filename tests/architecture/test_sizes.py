"""How long files and functions may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("backend_caps", "plugins", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
    if "tests" not in path.relative_to(ROOT).parts
)


def _lengths() -> Iterator[tuple[int, str]]:
    """Yield each function's lines without its docstring, and where it stands."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                start = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno
                assert start is not None
                yield node.end_lineno - start, f"{path.relative_to(ROOT)}:{node.lineno}"


def test_functions_are_short() -> None:
    """Half of the functions have at most 10 lines, nineteen in twenty at most 40."""
    lengths = [length for length, _ in _lengths()]

    assert median(lengths) <= 10
    assert quantiles(lengths, n=20)[-1] <= 40


def test_no_function_is_long() -> None:
    """No function has more than 60 lines."""
    long = [where for length, where in _lengths() if length > 60]

    assert long == []


def test_file_is_one_idea() -> None:
    """No file has more than 400 lines."""
    long = [path for path in SOURCES if path.read_text("utf-8").count("\n") > 400]

    assert long == []
