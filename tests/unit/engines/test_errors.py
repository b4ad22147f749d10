"""What is raised where nothing of an engine can be read."""

from __future__ import annotations

import pickle

from backend_caps.engines.reading import EngineError


def test_error_survives_pickling() -> None:
    """An error crosses into another process with its type, its code and its text."""
    error = EngineError("unknown-engine", "no reader knows it.")

    carried = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (type(carried), carried.code, str(carried)) == (EngineError, error.code, str(error))
