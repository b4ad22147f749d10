"""What batches cost, counted: launches, waits and copies of each part, and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from backend_caps_torch_native import TorchPadded

from backend_caps import HostSeqLens, protocols
from backend_caps.kit.costs import BatchCost, costs_of
from backend_caps.kit.scenarios import Forward, forwards_of
from backend_caps.kit.subject import Subject
from tests.kit.made import HONEST
from tests.kit.specimen import subject_of
from tests.kit.specimens import SUBJECTS


def _by_forward(subject: Subject) -> dict[Forward, BatchCost]:
    return {own.forward: own for own in costs_of(subject)}


def test_each_forward_has_its_cost() -> None:
    """A backend without waits has launches alone, and brings no lengths to the host."""
    costs = _by_forward(HONEST)

    assert {*costs} == {*forwards_of(HONEST)}
    decode = costs[Forward.DECODE]
    assert (decode.host_seq_lens, decode.num_requests) == (HostSeqLens.NONE, 4)
    assert decode.prepare.launches > 0
    assert decode.layer.launches > 0
    assert (decode.prepare.host_waits, decode.prepare.bytes_to_host) == (0, 0)
    assert decode.bytes_held > 0
    assert costs[Forward.PREFILL].host_seq_lens is HostSeqLens.EXACT


def test_wait_stands_with_the_part_that_waits() -> None:
    """A length that preparation asks the device for is a wait, and its bytes."""
    cost = _by_forward(SUBJECTS["longest_in_prepare"])[Forward.DECODE]

    assert cost.prepare.host_waits == 1
    assert cost.prepare.bytes_to_host > 0
    assert cost.layer.host_waits == 0


class _Workspace(TorchPadded):
    """Holds a page of numbers for each batch."""

    def init_forward_metadata(self, batch: protocols.ForwardBatch) -> None:
        """Make it anew."""
        super().init_forward_metadata(batch)
        self._workspace = torch.empty(4 * 4096, device=batch.seq_lens.device)


def test_workspace_is_held() -> None:
    """Memory that a preparation leaves behind is counted."""
    plain, larger = (
        _by_forward(subject)[Forward.DECODE].bytes_held
        for subject in (HONEST, subject_of(_Workspace))
    )

    assert larger - plain >= 4 * 4096 * 4


def _raising(site: object) -> TorchPadded:
    raise ValueError(site)


def test_forward_that_raises_is_left_out() -> None:
    """Checks say what is wrong with it."""
    assert _by_forward(replace(HONEST, builder=_raising)) == {}


@pytest.mark.parametrize("forward", [Forward.DECODE, Forward.VERIFY])
def test_forward_that_does_not_run_has_no_cost(forward: Forward) -> None:
    """What `--without` names is left out."""
    costs = _by_forward(replace(HONEST, without=frozenset({forward.value})))

    assert forward not in costs
