"""Batches of speculative steps, and the contexts that they extend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.batch import ForwardMode, ScheduleBatch
from backend_caps.runtime.forward_batch import ForwardBatch
from backend_caps.runtime.memory import RequestMemory
from backend_caps.runtime.speculative.contexts import Contexts
from backend_caps.runtime.speculative.drafter import DraftState
from backend_caps.simulator import simulate
from tests.runtime import memories
from tests.runtime.memories import make_batch, make_memory, values_of


def _decoding(memory: RequestMemory, *lengths: int) -> ScheduleBatch:
    """Make a batch that is prepared for a speculative step, without a mirror."""
    batch = memories.make_batch(memory, *lengths)
    batch.prepare_for_speculation([length + 6 for length in lengths], DraftState())
    batch.seq_lens_cpu = batch.seq_lens_sum = batch.seq_lens_cpu_upper_bound = None
    return batch


def _tell(batch: ScheduleBatch, mirror: list[int] | None, bound: list[int] | None) -> None:
    """Let the host have so much of a batch's lengths."""
    batch.seq_lens_cpu = None if mirror is None else torch.tensor(mirror)
    batch.seq_lens_cpu_upper_bound = None if bound is None else torch.tensor(bound)


def _on_host(batch: ScheduleBatch) -> tuple[object, object]:
    """Return the mirror and the bound."""
    values = memories.values_of(batch)
    return values["seq_lens_cpu"], values["seq_lens_cpu_upper_bound"]


@pytest.mark.parametrize(
    ("mirror", "bound", "expected"),
    [
        pytest.param(None, None, (None, None), id="nothing"),
        pytest.param(None, [7, 9], (None, [8, 10]), id="a bound"),
        pytest.param([2, 3], None, ([3, 4], None), id="a mirror"),
        pytest.param([2, 3], [2, 3], ([3, 4], [3, 4]), id="both"),
    ],
)
def test_plain_step_adds_to_what_the_host_has(
    mirror: list[int] | None, bound: list[int] | None, expected: tuple[object, object]
) -> None:
    """Mirror and bound grow with the lengths, out of place, and what is absent stays so."""
    memory = memories.make_memory()
    batch = _decoding(memory, 2, 3)
    _tell(batch, mirror, bound)
    old = batch.copy()

    batch.make_plain()

    assert _on_host(batch) == expected
    assert _on_host(old) == (mirror, bound)


def test_mix_without_a_mirror_places_every_token() -> None:
    """The forward's positions and slots are those that a mirror would have given."""
    memory = memories.make_memory()
    running, batch = (_decoding(memory, 4, 6), memories.make_batch(memory, 3, 1, first=3))
    running.make_plain()
    batch.mix_with_running(running)
    memories.make_relay(memory).resolve_future(batch)

    forward = ForwardBatch.init_new(batch)

    slots = [memories.table_of(memory, row)[place] for row, place in ((4, 0), (1, 4), (2, 6))]
    assert forward.positions.tolist() == [0, 1, 2, 0, 4, 6]
    assert forward.out_cache_loc.tolist() == [*memories.table_of(memory, 3), *slots]
    assert forward.extend_seq_lens_cpu is forward.extend_prefix_lens_cpu is None
    assert (forward.seq_lens_cpu, forward.seq_lens_sum) == (None, None)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        pytest.param((2, 3), (12, -1), id="one goes on"),
        pytest.param((5, 1), (-1, 21), id="the other goes on"),
        pytest.param((5, 3), (-1, -1), id="both end"),
    ],
)
def test_prompt_names_the_token_behind_its_stretch(
    num_tokens: tuple[int, int], expected: tuple[int, int]
) -> None:
    """A prompt that goes on has the next token already; behind its end the step makes it."""
    memory = memories.make_memory()
    requests = [memories.make_request(1, range(10, 15)), memories.make_request(2, range(20, 23))]
    memories.enter(memory, *requests)

    batch = ScheduleBatch.prepare_for_extend(requests, num_tokens, memory)

    assert batch.next_prompt_ids == expected


def _merged_into(batch: ScheduleBatch, other: ScheduleBatch) -> ScheduleBatch:
    other.merge(batch)
    return other


Change = Callable[[ScheduleBatch, ScheduleBatch], ScheduleBatch | None]
CHANGES = [
    pytest.param(lambda batch, _: batch.filter([1]), id="filter"),
    pytest.param(lambda batch, other: batch.merge(other), id="merge"),
    pytest.param(_merged_into, id="merge into another"),
    pytest.param(lambda batch, _: batch.make_plain(), id="plain step"),
    pytest.param(lambda batch, _: batch.copy(), id="copy"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_absence_survives(change: Change) -> None:
    """Whatever becomes of a batch without a mirror, it has none afterwards, and no bound."""
    memory = memories.make_memory()
    batch = _decoding(memory, 2, 3)

    changed = change(batch, memories.make_batch(memory, 4, first=3)) or batch

    assert (*_on_host(changed), changed.seq_lens_sum) == (None, None, None)


def test_bounds_survive_what_the_mirror_lacks() -> None:
    """Through filter, merge and copy the bounds stay with their requests."""
    memory = memories.make_memory()
    batch = _decoding(memory, 2, 3, 5)
    _tell(batch, None, [9, 8, 7])
    batch.filter([0, 2])

    batch.merge(memories.make_batch(memory, 4, first=4))

    assert memories.values_of(batch.copy())["seq_lens_cpu_upper_bound"] == [9, 7, 4]
    assert batch.seq_lens.tolist() == [2, 5, 4]


@pytest.mark.parametrize(
    ("mirror", "bound", "expected"),
    [
        pytest.param([2, 3], None, [2, 3], id="the mirror"),
        pytest.param(None, [9, 8], [9, 8], id="a bound"),
        pytest.param(None, None, None, id="nothing"),
    ],
)
def test_forward_has_the_tightest_bound_there_is(
    mirror: list[int] | None, bound: list[int] | None, expected: list[int] | None
) -> None:
    """Where there is a mirror it is the forward's bound too; without either there is none."""
    memory = memories.make_memory()
    batch = memories.make_batch(memory, 2, 3)
    memories.make_relay(memory).resolve_future(batch)
    _tell(batch, mirror, bound)

    found = ForwardBatch.init_new(batch).seq_lens_cpu_upper_bound
    assert (None if found is None else found.tolist()) == expected


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
