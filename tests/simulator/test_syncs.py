import inspect
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from backend_caps.simulator import simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Event


def _line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@pytest.mark.parametrize(
    ("read", "cause"),
    [
        pytest.param(lambda t: t.sum().item(), "aten::_local_scalar_dense", id="item"),
        pytest.param(lambda t: int(t.max()), "aten::_local_scalar_dense", id="int"),
        pytest.param(lambda t: bool((t > 0).all()), "aten::_local_scalar_dense", id="bool"),
        pytest.param(lambda t: t.tolist(), "aten::copy_", id="tolist"),
        pytest.param(lambda t: t.cpu(), "aten::copy_", id="cpu"),
        pytest.param(lambda t: t.nonzero(), "aten::nonzero", id="nonzero"),
        pytest.param(lambda t: t[t > 0], "aten::index.Tensor", id="mask"),
        pytest.param(lambda t: t[torch.tensor([0])], "aten::index.Tensor", id="host index"),
        pytest.param(lambda t: t.unique(), "aten::_unique2", id="unique"),
        pytest.param(lambda t: torch.equal(t, t), "aten::equal", id="equal"),
        pytest.param(
            lambda t: t.repeat_interleave(t), "aten::repeat_interleave.Tensor", id="repeat"
        ),
        pytest.param(lambda _: torch.ones(2).to("sim"), "aten::copy_", id="blocking upload"),
        pytest.param(lambda _: torch.tensor([1], device="sim"), "aten::copy_", id="tensor"),
    ],
)
def test_hidden_sync_is_counted_with_its_line(read: Callable[[Tensor], object], cause: str) -> None:
    """An operator that makes the host wait is found by file and line."""
    numbers = torch.arange(1, 4, device="sim")
    with simulate() as simulation:
        read(numbers)

    (sync,) = simulation.hidden_syncs
    assert sync.cause == cause
    assert sync.site.file == __file__


def test_hidden_sync_prints_its_place() -> None:
    """A sync prints as the operator and the line that called it."""
    with simulate() as simulation:
        torch.ones(1, device="sim").item()
        line = _line() - 1

    assert str(simulation.hidden_syncs[0]) == f"aten::_local_scalar_dense at {__file__}:{line}"


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda t: t[1:].add_(1), id="arithmetic"),
        pytest.param(lambda t: torch.repeat_interleave(t, t, output_size=6), id="known size"),
        pytest.param(lambda t: t.masked_fill_(t > 1, 0), id="masked_fill"),
        pytest.param(lambda t: t.__setitem__(t > 1, 0), id="mask with one value"),
        pytest.param(lambda t: t.__setitem__(0, 5), id="place"),
        pytest.param(lambda t: t.to("cpu", non_blocking=True), id="non-blocking copy"),
        pytest.param(
            lambda _: torch.ones(2).pin_memory().to("sim", non_blocking=True), id="upload"
        ),
        pytest.param(lambda _: torch.arange(4, device="sim"), id="arange"),
        pytest.param(lambda t: t[:0].cpu(), id="copy of nothing"),
        pytest.param(lambda _: torch.empty(0).to("sim"), id="upload of nothing"),
    ],
)
def test_beside_the_host_is_no_sync(run: Callable[[Tensor], object]) -> None:
    """What CUDA does without making the host wait is not counted."""
    numbers = torch.arange(1, 4, device="sim")
    with simulate("lazy") as simulation:
        run(numbers)

    assert simulation.hidden_syncs == []


def test_host_waits_are_listed() -> None:
    """Calls of synchronize are listed apart from hidden syncs, in their order."""
    with simulate() as simulation:
        event = sim.current_stream().record_event()
        event.synchronize()
        sim.current_stream().synchronize()
        torch.get_device_module("sim").synchronize()
        Event().synchronize()

    causes = [wait.cause for wait in simulation.host_waits]
    assert causes == ["Event.synchronize", "Stream.synchronize", "synchronize"]


def test_operators_are_counted() -> None:
    """Launches are counted; views and allocations are none."""
    with simulate("lazy") as simulation:
        numbers = torch.empty(4, device="sim").fill_(1)
        (numbers[1:] + 1).view(3, 1)

    assert simulation.num_ops == 2
