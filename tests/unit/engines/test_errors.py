"""What is raised where nothing of an engine can be read."""

from __future__ import annotations

import pickle

import pytest

from backend_caps.engines.errors import (
    EngineNotInstalledError,
    EngineSourceError,
    UnknownEngineError,
)
from backend_caps.errors import BackendCapsError

_ERRORS = [
    pytest.param(
        UnknownEngineError(name="sgl", known=("sglang", "vllm")),
        "no reader knows the engine 'sgl'; known: sglang, vllm. Name one of them.",
        id="UnknownEngineError",
    ),
    pytest.param(
        EngineNotInstalledError(engine="sglang"),
        "no distribution 'sglang' is installed here; expected a folder sglang/ on the path of "
        "imports. Install it, or name a folder or a wheel: --source PATH.",
        id="EngineNotInstalledError",
    ),
    pytest.param(
        EngineSourceError(engine="sglang", source="a.whl", problem="is not there"),
        "a.whl is not there; expected a wheel of sglang, or a folder with sglang/ in it. "
        "Name another with --source.",
        id="EngineSourceError",
    ),
]


@pytest.mark.parametrize(("error", "text"), _ERRORS)
def test_error_is_a_sentence_from_its_fields(error: BackendCapsError, text: str) -> None:
    """What is wrong with its values, what was expected, what to do."""
    written = str(error)

    assert written == text


@pytest.mark.parametrize(("error", "text"), _ERRORS)
def test_error_survives_pickling(error: BackendCapsError, text: str) -> None:
    """An error crosses into another process with its type, its fields and its text."""
    carried = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (type(carried), vars(carried), str(carried)) == (type(error), vars(error), text)


def test_errors_are_all_here() -> None:
    """Every error of this folder's readers is in the table above."""
    ours = {
        kind.__name__
        for kind in BackendCapsError.__subclasses__()
        if kind.__module__ == "backend_caps.engines.errors"
    }

    assert ours == {str(row.id) for row in _ERRORS}
