# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917 - a kernel's arguments are pointers and
# numbers, bare, many, and by position; what is compiled in is written large
"""The kernels that cut a forward into work, by lengths that only the device knows.

Shapes: B requests in the batch, T tokens in all, P rows in the request pool, L the longest
context, M entries in a tree mask, W items of work.

A request's tokens are cut into tiles and its context into chunks: an item is one tile against one
chunk. Chunks are as long for every request, so that items cost about the same, and a context of
one chunk needs no second pass.
"""

import triton
import triton.language as tl

sum_of = tl.sum

# The fields of `requests`: what the device finds out of each request.
LENGTH = tl.constexpr(0)
COUNT = tl.constexpr(1)
FIRST_TOKEN = tl.constexpr(2)
FIRST_ENTRY = tl.constexpr(3)
CHUNK = tl.constexpr(4)
NUM_SPLITS = tl.constexpr(5)
FIRST_ITEM = tl.constexpr(6)
FIRST_PART = tl.constexpr(7)
NUM_FIELDS = tl.constexpr(8)


@triton.jit
def _lengths_of(at, is_there, rows, seq_lens):
    """Load the contexts' lengths of some requests: as the batch says, and without padding's."""
    said = tl.load(seq_lens + at, mask=is_there, other=0).to(tl.int64)
    row = tl.load(rows + at, mask=is_there, other=0)
    return said, tl.where(row == 0, 0, said)


@triton.jit
def _counts_of(at, is_there, counts, count, HAS_COUNTS: tl.constexpr):
    """Load how many tokens some requests bring."""
    if HAS_COUNTS:
        found = tl.load(counts + at, mask=is_there, other=0).to(tl.int64)
    else:
        found = tl.where(is_there, count, 0).to(tl.int64)
    return found


@triton.jit
def _num_splits_of(lengths, chunk):
    """Count the chunks of some contexts; an empty one has one, in which nothing is seen."""
    return tl.maximum((lengths + chunk - 1) // chunk, 1)


@triton.jit
def _chunk_of(
    rows,
    seq_lens,
    counts,
    num_requests,
    count,
    target,
    HAS_COUNTS: tl.constexpr,
    TILE: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Choose how long chunks are: the whole batch, in tiles by positions, over `target` items."""
    cost = tl.full([BLOCK], 0, tl.int64)
    for start in range(0, num_requests, BLOCK):
        at = start + tl.arange(0, BLOCK)
        _, lengths = _lengths_of(at, at < num_requests, rows, seq_lens)
        found = _counts_of(at, at < num_requests, counts, count, HAS_COUNTS)
        cost += (found + TILE - 1) // TILE * lengths
    share = target.to(tl.int64) * MIN_CHUNK
    return MIN_CHUNK * tl.maximum((sum_of(cost, 0) + share - 1) // share, 1)


@triton.jit
def _fill(owners, value, start, stop, BLOCK: tl.constexpr):
    """Name the owner of the items from `start` to `stop`."""
    for first in range(start, stop, BLOCK):
        at = first + tl.arange(0, BLOCK)
        tl.store(owners + at, value, mask=at < stop)


# These change from forward to forward: compiled in, each would have a kernel of its own.
@triton.jit(do_not_specialize=["num_requests", "count", "num_items", "target"])
def plan_kernel(
    rows,
    seq_lens,
    counts,
    requests,
    owners,
    num_requests,
    count,
    num_items,
    target,
    HAS_COUNTS: tl.constexpr,
    TILE: tl.constexpr,
    MIN_CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one request's fields, and its items; the last request's program ends the table.

    rows      [B] int64  pool rows; 0 is padding
    seq_lens  [B] int64
    counts    [B] int32 or int64, or None where each brings `count`
    requests  [B, 8] int64  written
    owners    [W] int32  written: the request of each item, or -1

    Grid: B. Every program adds up what stands before its request by itself, so none waits.
    """
    request = tl.program_id(0)
    chunk = _chunk_of(
        rows, seq_lens, counts, num_requests, count, target, HAS_COUNTS, TILE, MIN_CHUNK, BLOCK
    )
    tokens = tl.full([BLOCK], 0, tl.int64)
    entries = tl.full([BLOCK], 0, tl.int64)
    items = tl.full([BLOCK], 0, tl.int64)
    parts = tl.full([BLOCK], 0, tl.int64)
    for start in range(0, request, BLOCK):
        at = start + tl.arange(0, BLOCK)
        said, lengths = _lengths_of(at, at < request, rows, seq_lens)
        found = _counts_of(at, at < request, counts, count, HAS_COUNTS)
        splits = _num_splits_of(lengths, chunk)
        found_items = (found + TILE - 1) // TILE * splits
        tokens += found
        entries += found * said
        items += found_items
        parts += tl.where(splits > 1, found_items, 0)
    _, length = _lengths_of(request, request >= 0, rows, seq_lens)
    own_count = _counts_of(request, request >= 0, counts, count, HAS_COUNTS)
    num_splits = _num_splits_of(length, chunk)
    first_item = sum_of(items, 0)
    own = requests + request * NUM_FIELDS
    tl.store(own + LENGTH, length)
    tl.store(own + COUNT, own_count)
    tl.store(own + FIRST_TOKEN, sum_of(tokens, 0))
    tl.store(own + FIRST_ENTRY, sum_of(entries, 0))
    tl.store(own + CHUNK, chunk)
    tl.store(own + NUM_SPLITS, num_splits)
    tl.store(own + FIRST_ITEM, first_item)
    tl.store(own + FIRST_PART, sum_of(parts, 0))
    stop = first_item + (own_count + TILE - 1) // TILE * num_splits
    _fill(owners, request, first_item, stop, BLOCK)
    if request == num_requests - 1:
        _fill(owners, -1, stop, num_items.to(tl.int64), BLOCK)


@triton.jit
def copy_slots_kernel(
    rows, seq_lens, table, slots, table_stride, slots_stride, BLOCK: tl.constexpr
):
    """Copy a stretch of one request's row of the page table, as far as its context goes.

    rows      [B] int64
    seq_lens  [B] int64
    table     [P, L] int32 or int64  what stands behind a context is stale, and not read
    slots     [B, L] int32  written

    Grid: B by stretches of `BLOCK` positions.
    """
    request = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + request).to(tl.int64)
    is_context = (at < tl.load(seq_lens + request)) & (row != 0)
    found = tl.load(table + row * table_stride + at, mask=is_context, other=0)
    tl.store(slots + request.to(tl.int64) * slots_stride + at, found, mask=is_context)
