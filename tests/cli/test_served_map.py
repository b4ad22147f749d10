"""Each command that runs steps runs them through the FutureMap that was configured."""

from __future__ import annotations

from functools import wraps

import pytest

from backend_caps.relay import FutureMap, RelayBatch
from backend_caps.startup.configuration import Configuration
from tests.cli.conftest import CommandLine

FLAGS = (
    "--attention-backend torch_native --speculative-algorithm EAGLE --speculative-eagle-topk 1 "
    "--disable-piecewise-cuda-graph --context-length 128"
)


class Seen:
    """Collects the maps of configurations, and those that steps read."""

    def __init__(self) -> None:
        self.configured: list[FutureMap] = []
        self.read: list[FutureMap] = []


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Look on while configurations are made and maps are read."""
    noted, made, resolve = Seen(), Configuration.from_plan, FutureMap.resolve_future

    def from_plan(*args: object, **named: object) -> Configuration:
        configuration = made(*args, **named)  # type: ignore[arg-type]
        noted.configured.append(configuration.future_map)
        return configuration

    @wraps(resolve)
    def resolve_future(self: FutureMap, batch: RelayBatch) -> None:
        noted.read.append(self)
        resolve(self, batch)

    monkeypatch.setattr(Configuration, "from_plan", from_plan)
    monkeypatch.setattr(FutureMap, "resolve_future", resolve_future)
    return noted


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("generate --prompts 2 --max-new-tokens 3", id="generate"),
        pytest.param("relay", id="relay"),
        pytest.param("dry-run --steps 3", id="dry-run"),
        pytest.param("trace --steps 2", id="trace"),
        pytest.param("explain host_seq_lens --measure", id="measure"),
    ],
)
def test_steps_of_a_command_read_the_configured_map(
    command: str, acme: CommandLine, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every map that a step reads belongs to a configuration; there is at least one step."""
    monkeypatch.setenv("BACKEND_CAPS_PLUGINS", "backend-caps-torch-native")

    result = acme.run(f"{command} -- {FLAGS}")

    assert result.exit_code == 0, result.stderr
    assert {id(own) for own in seen.read} == {id(own) for own in seen.configured} != set()
