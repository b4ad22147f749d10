from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError

import pytest
from backend_caps_vllm import check, engine
from backend_caps_vllm.__main__ import main


def _not_installed(name: str) -> str:
    raise PackageNotFoundError(name)


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No vLLM is installed."""
    monkeypatch.setattr(engine, "version", _not_installed)


def test_check_without_vllm_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Where no vLLM is installed nothing is imported and nothing raised; one line says why."""
    check()

    (line,) = [own.getMessage() for own in caplog.records]
    assert line.startswith(
        "backend-caps-vllm does nothing here: no distribution named vllm is installed."
    )
    assert "vllm" not in sys.modules


def test_program_without_vllm_has_a_status_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """What could not be looked at is neither well nor a fault."""
    assert main() == 2
    assert "no distribution named vllm is installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("allowed", "later"),
    [
        pytest.param(None, ["acme", "other"], id="all"),
        pytest.param(["backend_caps", "other"], ["other"], id="some"),
        pytest.param(["acme"], [], id="not-ours"),
    ],
)
def test_later_plugins_are_those_behind_ours(
    allowed: list[str] | None, later: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is that of the entry points, the allow-list is vLLM's, and its own are left out."""
    monkeypatch.setattr(engine, "entry_points", _five)

    assert engine.later_plugins(allowed) == later


class _Named:
    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value


def _five(*, group: str) -> list[_Named]:
    assert group == "vllm.general_plugins"
    own = _Named("lora_resolver", "vllm.plugins.lora_resolvers:register")
    names = ("first", "backend_caps", "acme", "other")
    return [*(_Named(name, f"{name}_vllm:register") for name in names), own]
