from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import FutureMap, RelayPayload
from tests.relay.batches import Batch, decode_batch, make_map, numbers, spec_batch
from tests.relay.forbidding import syncs_forbidden

Call = Callable[[FutureMap, Batch], None]
ROWS, LENS = numbers([3, 5]), numbers([30, 50])
PAYLOAD = RelayPayload(
    LENS,
    topk_p=torch.zeros(2, 2),
    topk_index=torch.zeros(2, 2, dtype=torch.int64),
    hidden_states=torch.zeros(2, 4, dtype=torch.bfloat16),
)
OPERATORS = [
    pytest.param(lambda fm, _: fm.publish(ROWS, LENS), ["scatter_"], id="publish"),
    pytest.param(
        lambda fm, _: fm.stash(ROWS, PAYLOAD),
        ["scatter_", "index_copy_", "index_copy_", "index_copy_"],
        id="stash",
    ),
    pytest.param(FutureMap.resolve_seq_lens_cpu, ["index_select"], id="resolve_seq_lens_cpu"),
    pytest.param(FutureMap.resolve_future, ["index_select"] * 4, id="resolve_future"),
]


@contextmanager
def no_host_wait(device: torch.device) -> Iterator[None]:
    """Make a host wait for the device an error, where torch can see one."""
    with syncs_forbidden() if device.type == "cuda" else nullcontext():
        yield


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Write down which of torch's operators run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Note the name and go on."""
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("call", "expected"), OPERATORS)
def test_step_without_a_mirror_runs_one_operator_a_field(call: Call, expected: list[str]) -> None:
    """Nothing is converted, allocated on the side, or brought to the host: no `item`, no copy."""
    fm = make_map(host_seq_lens=HostSeqLens.NONE)
    batch = spec_batch([3, 5])

    with Operators() as operators:
        call(fm, batch)

    assert operators.names == expected


def test_decode_ids_are_resolved_by_one_gather() -> None:
    """Which ids are pending is known on the host, so nobody looks at them."""
    fm = make_map(speculative=False)
    batch = decode_batch([3, 5])
    fm.set_input_ids_sentinel(batch)

    with Operators() as operators:
        fm.resolve_future(batch)

    assert operators.names == ["index_select"]


def test_upper_bound_touches_no_device_value() -> None:
    """Under UPPER_BOUND a step brings no device value to the host: no `item`, no device copy."""
    fm = make_map(host_seq_lens=HostSeqLens.UPPER_BOUND)
    batch = spec_batch([3, 5])

    with Operators() as operators:
        fm.resolve_seq_lens_cpu(batch)

    assert not {"_local_scalar_dense", "_to_copy"} & set(operators.names)


@pytest.mark.parametrize("mode", [HostSeqLens.NONE, HostSeqLens.UPPER_BOUND])
def test_step_without_a_mirror_synchronises_nothing(
    mode: HostSeqLens, device: torch.device
) -> None:
    """CUDA's own detector sees no host wait in a step without a mirror."""
    fm = make_map(device, mode)
    batch = spec_batch([3, 5], device)
    rows, lens = ROWS.to(device), LENS.to(device)
    payload = RelayPayload(lens)

    with no_host_wait(device):
        fm.publish(rows, lens)
        fm.stash(rows, payload)
        fm.resolve_seq_lens_cpu(batch)
        fm.resolve_future(batch)

    assert batch.seq_lens.tolist() == [30, 50]
