"""How long files and functions may be, and how models are validated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles

import pytest
from pydantic import BaseModel

from backend_caps import Declaration, Rule, ServerFlags

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
    assert [where for length, where in _lengths() if length > 60] == []


def test_file_is_one_idea() -> None:
    """No file has more than 400 lines."""
    assert [path for path in SOURCES if path.read_text("utf-8").count("\n") > 400] == []


def _called(schema: object) -> Iterator[Callable[..., object]]:
    """List the validators and serializers in a core schema."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name == "function" and callable(value):
                yield value
            yield from _called(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _called(value)


@pytest.mark.parametrize(
    "model", [pytest.param(each, id=each.__name__) for each in (Declaration, Rule, ServerFlags)]
)
def test_model_calls_nothing_whose_signature_is_a_text(model: type[BaseModel]) -> None:
    """No validator is a class or function in C: pydantic would parse their help text."""
    model.model_rebuild()

    called = set(_called(model.__pydantic_core_schema__))

    assert called
    assert not [each for each in called if getattr(each, "__text_signature__", None)]
