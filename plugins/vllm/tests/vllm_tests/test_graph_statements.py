from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from backend_caps_vllm.engine import Registered
from backend_caps_vllm.graph_statements import GraphStatement, look


@pytest.fixture(autouse=True)
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import from, whose modules are forgotten again."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


def look_at(folder: Path, text: str, path: str = "acme_backend.Acme") -> GraphStatement:
    """Look at a backend of a module with this text."""
    (folder / "acme_backend.py").write_text(text)
    return look(Registered("CUSTOM", path), imports=True)


def test_label_is_no_fault() -> None:
    """vllm-ascend registers `CUSTOM` as `ASCEND`: nothing is imported, and nothing is wrong."""
    seen = look(Registered("CUSTOM", "ASCEND"), imports=True)

    words = "a label, which names no class: the platform chooses the class by itself"
    assert (str(seen), seen.fault, seen.level) == (f"CUSTOM (ASCEND): {words}.", None, None)


BUILDER = "class Acme:\n    @staticmethod\n    def get_builder_cls():\n        "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "import acme_npu",
            "it cannot be asked here, where it raises ModuleNotFoundError: No module named "
            "'acme_npu'",
            id="hardware",
        ),
        pytest.param(
            f"{BUILDER}assert False, 'no config'",
            "it cannot be asked here, where it raises AssertionError: no config",
            id="no-server",
        ),
        pytest.param(
            f"{BUILDER}raise NotImplementedError",
            "it has no metadata builder, so vLLM asks it for no graph",
            id="no-builder",
        ),
    ],
)
def test_what_cannot_be_asked_here_is_no_fault(acme: Path, text: str, words: str) -> None:
    """A backend that needs its hardware or a server is not called broken."""
    seen = look_at(acme, text)

    assert (seen.words, seen.fault) == (words, None)


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        pytest.param(
            "acme_lost.Acme",
            "",
            "There is no module 'acme_lost'. Correct the path that 'acme_lost.Acme' is registered "
            "with.",
            id="no-module",
        ),
        pytest.param(
            "acme_backend.Acme",
            "",
            "'Acme' of acme_backend is of type NoneType, not a class. Correct the path that "
            "'acme_backend.Acme' is registered with.",
            id="no-class",
        ),
        pytest.param(
            "acme_backend.Acme",
            f"{BUILDER}return 3",
            "get_builder_cls() returned an object of type int. Return the builder's class.",
            id="no-builder",
        ),
    ],
)
def test_fault_says_what_to_correct(acme: Path, path: str, text: str, fault: str) -> None:
    """What vLLM itself would fail at is a fault, with the line to correct."""
    seen = look_at(acme, text, path)

    assert (seen.words, seen.fault) == ("nothing is known of its graphs", fault)
