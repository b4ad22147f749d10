"""Forwards behind lengths that the device alone knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.batch import ForwardMode
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.simulator import simulate
from tests.runtime.memories import make_batch, make_memory, values_of

WIDTH = 12
LENGTHS = (3, 5)
VISIBLE = torch.tensor([[[True, False], [False, True]]] * 2)
"""Two tokens of each request, which do not see each other."""


def _contexts(
    *, mirror: bool = False, bound: tuple[int, int] | None = None, device: str = "cpu"
) -> Contexts:
    """Make two contexts, in rows 3 and 1, of which row r's slots start at 100 r."""
    table = torch.arange(4)[:, None] * 100 + torch.arange(WIDTH)
    return Contexts(
        req_to_token=table.to(torch.int32).to(device),
        req_pool_indices=torch.tensor([3, 1]).to(device),
        seq_lens=torch.tensor(LENGTHS).to(device),
        seq_lens_cpu=torch.tensor(LENGTHS) if mirror else None,
        upper_bound=None if bound is None else torch.tensor(bound),
    )


def _forward(
    contexts: Contexts,
    *,
    start: int = 0,
    visible: Tensor | None = None,
    mask_buffers: Sequence[Tensor | None] = (None,),
) -> ForwardBatch:
    """Make a forward of two tokens of each request."""
    device = contexts.seq_lens.device
    return contexts.forward(
        ForwardMode.VERIFY,
        torch.tensor([[11, 12], [21, 22]]).to(device),
        torch.tensor([[3, 4], [5, 5]]).to(device),
        start=start,
        visible=None if visible is None else visible.to(device),
        mask_buffers=mask_buffers,
    )


def _list(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else tensor.tolist()


def test_forward_takes_tokens_request_after_request() -> None:
    """Tokens, positions and slots are in one order, and the rows are the contexts'."""
    forward = _forward(_contexts(), start=1)

    assert forward.mode is ForwardMode.VERIFY
    assert forward.input_ids.tolist() == [11, 12, 21, 22]
    assert forward.positions.tolist() == [3, 4, 5, 5]
    assert forward.out_cache_loc.tolist() == [304, 305, 106, 107]
    assert forward.out_cache_loc.dtype is torch.int64
    assert forward.req_pool_indices.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("mirror", "bound", "expected"),
    [
        pytest.param(False, None, (None, None, None), id="nothing"),
        pytest.param(False, (9, 6), (None, None, [12, 9]), id="a bound"),
        pytest.param(True, None, ([6, 8], 14, None), id="a mirror"),
        pytest.param(True, (3, 5), ([6, 8], 14, [6, 8]), id="both"),
    ],
)
def test_forward_has_what_the_host_has_of_its_contexts(
    mirror: bool, bound: tuple[int, int] | None, expected: tuple[object, object, object]
) -> None:
    """Mirror, sum and bound grow with the lengths, each where there was one."""
    forward = _forward(_contexts(mirror=mirror, bound=bound), start=1)

    found = (
        _list(forward.seq_lens_cpu),
        forward.seq_lens_sum,
        _list(forward.seq_lens_cpu_upper_bound),
    )
    assert found == expected


def _laid_out() -> list[bool]:
    """Write the mask of `VISIBLE` down: two rows of each request, all before the tree seen."""
    rows = [[True] * length + own for length in LENGTHS for own in ([True, False], [False, True])]
    return [entry for row in rows for entry in row]


@pytest.mark.parametrize("mirror", [True, False], ids=["mirror", "no mirror"])
def test_mask_of_each_half_is_laid_out_as_one_of_its_own(*, mirror: bool) -> None:
    """Two buffers take the halves' masks, each from its own start, whatever the lengths before."""
    buffer = torch.zeros(48, dtype=torch.bool)

    forward = _forward(_contexts(mirror=mirror), visible=VISIBLE, mask_buffers=(None, buffer))

    assert forward.tree_mask is None
    assert forward.half_masks is not None
    exact, sizes = _laid_out(), [2 * (length + 2) for length in LENGTHS]
    entries = [mask[:size].tolist() for mask, size in zip(forward.half_masks, sizes, strict=True)]
    assert entries == [exact[: sizes[0]], exact[sizes[0] :]]
    assert forward.half_masks[1] is buffer


def test_forward_writes_nothing_to_the_schedulers_batch() -> None:
    """Every field of the batch, and what each tensor holds, is what it was before."""
    memory = make_memory()
    batch = make_batch(memory, 2, 3)
    before = values_of(batch)

    _forward(Contexts.of_step(batch, memory.rows.req_to_token), visible=VISIBLE)

    assert values_of(batch) == before


@pytest.mark.parametrize("mirror", [True, False])
def test_forward_never_makes_the_host_wait(mirror: bool) -> None:
    """Slots, lengths and masks are made without a wait and without a byte to the host."""
    with simulate("lazy") as simulation:
        contexts, visible = _contexts(mirror=mirror, device="sim"), VISIBLE.to("sim")
        ids = torch.zeros(2, 2, dtype=torch.int64, device="sim")
        before = simulation.counts

        contexts.forward(ForwardMode.VERIFY, ids, ids, start=0, visible=visible)

        spent = simulation.counts - before
        assert (spent.num_host_waits, spent.bytes_to_host) == (0, 0)
