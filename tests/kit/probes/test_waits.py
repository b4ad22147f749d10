from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from backend_caps.kit.probes.waits import host_waits
from backend_caps.relay.streams import DeviceStreams
from backend_caps.simulator import simulate

_WORDS = "called a synchronizing CUDA operation (Triggered internally)"
_ON, _OFF = 1, 0


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Take down which modes torch's watch is set to, where there may be no GPU to watch."""
    told: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", told.append)
    return told


def test_operators_and_calls_that_wait_are_listed_with_their_lines() -> None:
    """A value that is read and a stream that is waited for are two waits, of this file."""
    with simulate() as simulation, host_waits(simulation) as found:
        torch.ones(1, device="sim").item()
        DeviceStreams("sim").current_stream().synchronize()

    assert [own.cause for own in found] == ["aten::_local_scalar_dense", "Stream.synchronize"]
    assert {Path(own.site.file).name for own in found} == {"test_waits.py"}


def test_waits_before_and_behind_the_block_are_not_its_own() -> None:
    """Only what waits within the block is listed, and once it has ended."""
    with simulate() as simulation:
        value = torch.ones(1, device="sim")
        value.item()
        with host_waits(simulation) as found:
            value.add_(1)
        value.item()

    assert found == []


def test_warnings_of_torch_on_cuda_are_waits(modes: list[int]) -> None:
    """Without a simulation torch's own watch tells, by a warning for each operator that blocks."""
    with host_waits(None) as found:
        warnings.warn(_WORDS, stacklevel=1)
        warnings.warn("something else", stacklevel=1)

    assert [own.cause for own in found] == ["an operator or a stream"]
    assert Path(found[0].site.file).name == "test_waits.py"
    assert modes == [_ON, _OFF]


def test_the_watch_on_cuda_ends_with_the_block_that_raises(modes: list[int]) -> None:
    """A backend that raises leaves no watch behind."""
    with pytest.raises(ZeroDivisionError), host_waits(None):
        raise ZeroDivisionError

    assert modes == [_ON, _OFF]
