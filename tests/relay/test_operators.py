from contextlib import nullcontext

import pytest
import torch

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import RelayPayload
from tests.relay.batches import make_map, numbers, spec_batch
from tests.relay.forbidding import syncs_forbidden


@pytest.mark.parametrize("mode", [HostSeqLens.NONE, HostSeqLens.UPPER_BOUND])
def test_step_without_a_mirror_synchronises_nothing(
    mode: HostSeqLens, device: torch.device
) -> None:
    """CUDA's own detector sees no host wait in a step without a mirror."""
    fm = make_map(device, mode)
    batch = spec_batch([3, 5], device)
    rows, lens = numbers([3, 5], device), numbers([30, 50], device)
    payload = RelayPayload(lens)

    with syncs_forbidden() if device.type == "cuda" else nullcontext():
        fm.publish(rows, lens)
        fm.stash(rows, payload)
        fm.resolve_seq_lens_cpu(batch)
        fm.resolve_future(batch)

    assert batch.seq_lens.tolist() == [30, 50]
