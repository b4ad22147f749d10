"""What a start sees of a class that does otherwise than its declaration says."""

from __future__ import annotations

import pytest
import torch
from backend_caps_sglang.own_backend import contradictions

from backend_caps import BatchKind, Capabilities, Declaration, HostSeqLens
from backend_caps.protocols import ForwardBatch

DEVICE = torch.device("cpu")
REPLAYED = frozenset({BatchKind.SINGLE_TOKEN_DECODE})


class Slices:
    """A backend that needs the lengths, and whatever else a test gives it."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Read them."""
        if batch.seq_lens_cpu is None:
            raise ValueError("no lengths")

    def forward(self) -> None:
        """Be there."""


class Bounds(Slices):
    """A backend that needs a bound, and does without the lengths."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Read both."""
        if batch.seq_lens_cpu is None and batch.seq_lens_cpu_upper_bound is None:
            raise ValueError("no bound")


class Bare:
    """A backend without methods."""


class Fails(Slices):
    """A backend that cannot take this batch, and reads no lengths for it."""

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Raise."""
        raise ValueError(batch.seq_lens)


def declaring(level: HostSeqLens, replayed: frozenset[BatchKind] = frozenset()) -> Declaration:
    """Declare what is looked at."""
    return Declaration(capabilities=Capabilities(host_seq_lens=level, graph_replay=replayed))


@pytest.mark.parametrize(
    ("own", "declaration", "told"),
    [
        pytest.param(
            Slices(),
            declaring(HostSeqLens.NONE),
            "it declares host_seq_lens=none, and Slices reads seq_lens_cpu in "
            "init_forward_metadata, which without it raised ValueError: no lengths",
            id="reads-lengths",
        ),
        pytest.param(
            Bounds(),
            declaring(HostSeqLens.NONE),
            "it declares host_seq_lens=none, and Bounds reads seq_lens_cpu, "
            "seq_lens_cpu_upper_bound in init_forward_metadata, which without it raised "
            "ValueError: no bound",
            id="reads-a-bound",
        ),
        pytest.param(
            Slices(),
            declaring(HostSeqLens.EXACT, REPLAYED),
            "it declares graph_replay=single_token_decode, and Slices has no "
            "init_cuda_graph_state, init_forward_metadata_out_graph, "
            "init_forward_metadata_in_graph",
            id="has-no-hooks",
        ),
        pytest.param(
            Bare(),
            declaring(HostSeqLens.NONE),
            "Bare has no init_forward_metadata, forward, which every backend has",
            id="is-no-backend",
        ),
        pytest.param(Slices(), declaring(HostSeqLens.EXACT), "", id="declares-lengths"),
        pytest.param(Bounds(), declaring(HostSeqLens.UPPER_BOUND), "", id="declares-a-bound"),
        pytest.param(Fails(), declaring(HostSeqLens.NONE), "", id="fails-without-lengths"),
        pytest.param(Slices(), Declaration(), "", id="declares-nothing"),
    ],
)
def test_contradiction_is_reported_with_the_claim(
    own: object, declaration: Declaration, told: str
) -> None:
    """A claim that the class does not keep is named; what it keeps, or never made, is not."""
    assert "; ".join(contradictions(own, declaration, DEVICE)) == told
