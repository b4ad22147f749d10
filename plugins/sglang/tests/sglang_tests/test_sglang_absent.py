from __future__ import annotations

import logging
import os
import pickle
import sys
from importlib.metadata import PackageNotFoundError

import pytest
from backend_caps_sglang import NameTakenError, engine, register
from backend_caps_sglang.registration import VARIABLE


def test_register_without_sglang_is_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no SGLang is installed nothing is imported, written or raised; one line says why."""
    monkeypatch.setattr(engine, "version", _not_installed)
    monkeypatch.delenv(VARIABLE, raising=False)

    register()

    (line,) = [own for own in caplog.records if own.levelno == logging.ERROR]
    assert "no distribution named sglang is installed; supported is SGLang" in line.getMessage()
    assert ("sglang" in sys.modules, VARIABLE in os.environ) == (False, False)


def _not_installed(name: str) -> str:
    raise PackageNotFoundError(name)


def test_error_survives_pickling() -> None:
    """An error crosses into another process with its fields."""
    error = NameTakenError(name="fa3", owner="acme 1.0", taken_by="a choice of its flags")

    carried = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert str(carried) == (
        "backend 'fa3' of acme 1.0 is not registered: SGLang has that name already, for a choice "
        "of its flags, which stays. Give the backend another name, or take its adapter for sglang "
        "out of its declaration."
    )
