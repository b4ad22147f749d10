from __future__ import annotations

import ast
from pathlib import Path

from backend_caps.capability.kind import ANY
from backend_caps.capability.provenance import Origin
from backend_caps.capability.sets import ComputeRange, Windows
from backend_caps.engines.vllm.lookup import windows_of
from tests.unit.engines.tables import table
from tests.unit.engines.vllm.building import declared, read_one, said


def _windows(test: str) -> Windows | None:
    return windows_of(ast.parse(test, mode="eval").body, "cap")


@table("vllm_constants", "test_is_windows")
def test_test_is_windows(test: str, windows: str) -> None:
    """A test of a compute capability comes to the windows that it lets pass; none is any."""
    read = _windows(test)

    assert read == (tuple(map(_window, windows.split())) or ANY)


def _window(text: str) -> ComputeRange:
    first, _, below = text.partition("-")
    return ComputeRange(_version(first), _version(below) if below else None)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


@table("vllm_constants", "other_test_is_not_read")
def test_other_test_is_not_read(test: str) -> None:
    """A test that asks for anything else, or that nothing passes, has no windows."""
    assert _windows(test) is None


def _method(*lines: str) -> str:
    return "\n".join(["def supports_compute_capability(cls, cap):", *(f"    {x}" for x in lines)])


def test_capability_is_declared(tmp_path: Path) -> None:
    """The windows of a class's own test are declared."""
    backend = read_one(tmp_path, _method("return cap.major == 9"))

    assert declared(backend).capabilities.compute_capability == (ComputeRange((9, 0), (10, 0)),)


def test_capability_with_another_question_is_undeclared(tmp_path: Path) -> None:
    """Where one of the answers asks for more, nothing is declared."""
    method = _method("if xpu():", "    return True", "return cap.major == 9 and built()")

    backend = read_one(tmp_path, method)

    reading = said(backend, "compute_capability")
    assert (reading.origin, reading.value) == (Origin.CONDITIONAL, None)
    assert reading.words == (
        "supports_compute_capability() returns True where xpu(); else cap.major == 9 and built()"
    )
    assert declared(backend).capabilities.stated() == {}
