"""Implementations that are not there: what is missing, and what is nearest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend_caps.capability.provenance import Status
from backend_caps.discovery.pointer import misnamed
from backend_caps.discovery.registry import discover

_BACKEND = "class AcmeBackend:\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package with modules of several kinds."""
    for name, text in {
        "acme/__init__.py": "",
        "acme/backend.py": _BACKEND,
        "acme/lazy.py": "def __getattr__(name): ...\n",
        "acme/kernels/__init__.py": "from acme.backend import *\n",
        "alone.py": _BACKEND,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "acme" / "built.so").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("pointer", "what"),
    [
        pytest.param(
            "acme.backend:AcmeBackends",
            "acme.backend has no 'AcmeBackends'; the nearest is acme.backend:AcmeBackend",
            id="class",
        ),
        pytest.param(
            "acme.backed:AcmeBackend",
            "acme has no module 'backed'; the nearest is acme.backend",
            id="module",
        ),
        pytest.param("acme.zzz:AcmeBackend", "acme has no module 'zzz'", id="nothing-near"),
        pytest.param(
            "acme:Backend", "acme has no 'Backend'; the nearest is acme:backend", id="no-module"
        ),
    ],
)
def test_what_is_missing_is_named_with_the_nearest(pointer: str, what: str, folder: Path) -> None:
    """A module or a class that is written wrongly is found in files."""
    assert misnamed(pointer, [str(folder)]) == what


@pytest.mark.parametrize(
    "pointer",
    [
        pytest.param("acme.backend:AcmeBackend", id="there"),
        pytest.param("acme.backend:AcmeBackend.made", id="attribute-of-class"),
        pytest.param("acme.lazy:Anything", id="made-at-run-time"),
        pytest.param("acme.kernels:Anything", id="star-import"),
        pytest.param("no_such_package.backend:Backend", id="not-installed"),
        pytest.param("no_such_package:Backend", id="module-not-installed"),
        pytest.param("alone.backend:Backend", id="no-package"),
    ],
)
def test_what_cannot_be_told_is_left_to_the_import(pointer: str, folder: Path) -> None:
    """Nothing is said of names that may be there."""
    assert misnamed(pointer, [str(folder)]) is None


def test_file_that_cannot_be_read_is_left_to_the_import(folder: Path) -> None:
    """A module whose file is too large is not judged."""
    os.truncate(folder / "acme" / "backend.py", 2**40)

    assert misnamed("acme.backend:AcmeBackend", [str(folder)]) is None


def test_discovery_names_it_as_a_problem(folder: Path) -> None:
    """A backend whose class is written wrongly is read, with a problem that has the line."""
    info = folder / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[backend_caps.backends]\nacme = acme_caps:A\n")
    (folder / "acme_caps.py").write_text(
        "from backend_caps import Capabilities, Declaration\n"
        "A = Declaration(capabilities=Capabilities(), implementation='acme.backend:AcmeBackends')\n"
    )

    backend = discover([folder], environ={})["acme"]

    (problem,) = backend.problems
    assert (backend.status, problem.code) == (Status.OK, "no-implementation")
    assert "acme.backend:AcmeBackend" in problem.message
    assert problem.remedy == f"Correct `implementation` at {folder}/acme_caps.py:2."
