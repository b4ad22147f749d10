# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator, no-untyped-call"
# ruff: noqa: ANN001, ANN201, ANN202, N803, PLR0913, PLR0917 - a kernel's arguments are pointers and
# numbers, bare, many, and by position; what is compiled in is written large
"""The kernels that attend: one item of work a program, and a second pass over split contexts.

Shapes: B requests and T tokens in the batch, S slots in the KV cache, L the longest context, Hq
query heads, Hk key and value heads, D and Dv their sizes, M entries in a tree mask, W items of
work, H blocks of heads, R rows of an item, Q parts.

The rows of an item are the queries of `TILE` tokens by `GROUP` heads that share a key and value
head: a key is read once for all of them. The softmax is taken online and to the base 2.
"""

import triton
import triton.language as tl

from backend_caps_triton.planning import (
    CHUNK,
    COUNT,
    FIRST_ENTRY,
    FIRST_ITEM,
    FIRST_PART,
    FIRST_TOKEN,
    LENGTH,
    NUM_FIELDS,
    NUM_SPLITS,
)

max_of = tl.max
sum_of = tl.sum


@triton.jit
def _rows_of(
    tile,
    count,
    GROUP_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Say of each row: its token of the request, its head among all, and whether it is one."""
    places = tl.arange(0, ROWS)
    blocks: tl.constexpr = (GROUP_SIZE + GROUP - 1) // GROUP
    head_block = tl.program_id(1)
    token = tile * TILE + places // GROUP
    member = head_block % blocks * GROUP + places % GROUP
    is_row = (places < TILE * GROUP) & (token < count) & (member < GROUP_SIZE)
    return token, head_block // blocks * GROUP_SIZE + member, is_row


@triton.jit
def _stretch_of(split, chunk, length):
    """Say where one chunk of a context begins and ends."""
    low = split * chunk
    return low.to(tl.int32), tl.minimum(low + chunk, length).to(tl.int32)


@triton.jit
def _queries_at(at, is_row, HEAD_SIZE: tl.constexpr, FEATURES: tl.constexpr):
    """Load each row's query, and zeros for what is no row: there may be no number."""
    feature = tl.arange(0, FEATURES)[None, :]
    return tl.load(at[:, None] + feature, mask=is_row[:, None] & (feature < HEAD_SIZE), other=0)


@triton.jit
def _visible_to(token, is_row, positions, is_there, length, count, entries, HAS_MASK: tl.constexpr):
    """Say what each row sees of some positions."""
    if HAS_MASK:
        at = entries + token[:, None] * length + positions[None, :]
        visible = tl.load(at, mask=is_row[:, None] & is_there[None, :], other=0) != 0
    else:
        ends = length - count + token
        visible = (positions[None, :] <= ends[:, None]) & is_there[None, :]
    return visible


@triton.jit
def _weighed(scores, largest):
    """Go on with a softmax: the new maxima, the weights, and what is kept of earlier sums."""
    larger = tl.maximum(largest, max_of(scores, 1))
    # Rows that have seen nothing yet: the difference of two infinities is no number.
    base = tl.where(larger == float("-inf"), 0.0, larger)
    return larger, tl.exp2(scores - base[:, None]), tl.exp2(largest - base)


@triton.jit
def _store(target, result, row, is_row, VALUE_SIZE: tl.constexpr, VALUE_FEATURES: tl.constexpr):
    """Write what was found for each row, in the target's dtype."""
    feature = tl.arange(0, VALUE_FEATURES)
    at = row[:, None] * VALUE_SIZE + feature[None, :]
    is_result = is_row[:, None] & (feature < VALUE_SIZE)[None, :]
    tl.store(target + at, result.to(target.dtype.element_ty), mask=is_result)


@triton.jit
def attend_kernel(
    q,
    keys,
    values,
    slots,
    requests,
    owners,
    mask,
    parts,
    weights,
    output,
    q_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    slots_stride,
    scale,
    NUM_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    HAS_MASK: tl.constexpr,
    DOT: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    FEATURES: tl.constexpr,
    VALUE_FEATURES: tl.constexpr,
):
    """Attend from one item's rows to its chunk: into the output, or where it has others, a part.

    q         [T, Hq, D]
    keys      [S, Hk, D]
    values    [S, Hk, Dv]
    slots     [B, L] int32
    requests  [B, 8] int64
    owners    [W] int32
    mask      [M] uint8, or None
    parts     [Q, H, R, Dv] float32  written
    weights   [Q, H, R] float32  written: the logarithm of each part's sum, to the base 2
    output    [T, Hq, Dv]  written

    Grid: W by H. Nothing is read but slots of the context, and of these what a row sees.
    """
    item = tl.program_id(0)
    request = tl.load(owners + item).to(tl.int64)
    if request < 0:
        return
    own = requests + request * NUM_FIELDS
    length = tl.load(own + LENGTH).to(tl.int32)
    count = tl.load(own + COUNT).to(tl.int32)
    num_splits = tl.load(own + NUM_SPLITS).to(tl.int32)
    own_item = item - tl.load(own + FIRST_ITEM).to(tl.int32)
    tile = own_item // num_splits
    token, head, is_row = _rows_of(tile, count, GROUP_SIZE, GROUP, TILE, ROWS)
    first_token = tl.load(own + FIRST_TOKEN)
    feature = tl.arange(0, FEATURES)
    value_feature = tl.arange(0, VALUE_FEATURES)
    query_at = (first_token + token) * q_stride + head * HEAD_SIZE
    query = _queries_at(q + query_at, is_row, HEAD_SIZE, FEATURES).to(DOT)
    kv_head = tl.program_id(1) // ((GROUP_SIZE + GROUP - 1) // GROUP)
    key_at = keys + kv_head * key_head_stride + feature
    value_at = values + kv_head * value_head_stride + value_feature
    slot_at = slots + request * slots_stride
    entries = mask + tl.load(own + FIRST_ENTRY) if HAS_MASK else mask
    # A mask may show a token what comes behind it.
    behind = 0 if HAS_MASK else tl.maximum(count - (tile + 1) * TILE, 0)
    low, high = _stretch_of(own_item % num_splits, tl.load(own + CHUNK), length - behind)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    summed = tl.full([ROWS, VALUE_FEATURES], 0.0, tl.float32)
    for start in range(low, high, STEP):
        positions = start + tl.arange(0, STEP)
        visible = _visible_to(
            token, is_row, positions, positions < high, length, count, entries, HAS_MASK
        )
        # What no row sees may hold anything: 0 * NaN is NaN, so it is not read at all.
        is_there = max_of(visible.to(tl.int32), 0) > 0 if HAS_MASK else positions < high
        slot = tl.load(slot_at + positions, mask=is_there, other=0).to(tl.int64)
        is_key = (feature < HEAD_SIZE)[:, None] & is_there[None, :]
        key = tl.load(key_at[:, None] + (slot * key_stride)[None, :], mask=is_key, other=0)
        scores = tl.dot(query, key.to(DOT), input_precision="ieee") * scale
        largest, shares, kept = _weighed(tl.where(visible, scores, float("-inf")), largest)
        is_value = is_there[:, None] & (value_feature < VALUE_SIZE)[None, :]
        value = tl.load(value_at[None, :] + (slot * value_stride)[:, None], mask=is_value, other=0)
        kept_sum = summed * kept[:, None]
        summed = tl.dot(shares.to(DOT), value.to(DOT), kept_sum, input_precision="ieee")
        total = total * kept + sum_of(shares, 1)
    total = tl.where(total == 0, 1.0, total)
    summed /= total[:, None]
    if num_splits == 1:
        place = (first_token + token) * NUM_HEADS + head
        _store(output, summed, place, is_row, VALUE_SIZE, VALUE_FEATURES)
    else:
        part = (tl.load(own + FIRST_PART) + own_item) * tl.num_programs(1) + tl.program_id(1)
        place = part * ROWS + tl.arange(0, ROWS)
        _store(parts, summed, place, is_row, VALUE_SIZE, VALUE_FEATURES)
        tl.store(weights + place, largest + tl.log2(total), mask=is_row)


@triton.jit
def combine_kernel(
    parts,
    weights,
    requests,
    owners,
    output,
    NUM_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    VALUE_FEATURES: tl.constexpr,
):
    """Add up the parts of one tile, where its request's context was split.

    parts     [Q, H, R, Dv] float32
    weights   [Q, H, R] float32
    requests  [B, 8] int64
    owners    [W] int32
    output    [T, Hq, Dv]  written

    Grid: W by H; of a tile's items the first one adds up, and the others have nothing to do.
    """
    item = tl.program_id(0)
    request = tl.load(owners + item)
    if request < 0:
        return
    own = requests + request * NUM_FIELDS
    num_splits = tl.load(own + NUM_SPLITS).to(tl.int32)
    own_item = item - tl.load(own + FIRST_ITEM).to(tl.int32)
    if (num_splits == 1) | (own_item % num_splits != 0):
        return
    count = tl.load(own + COUNT).to(tl.int32)
    token, head, is_row = _rows_of(own_item // num_splits, count, GROUP_SIZE, GROUP, TILE, ROWS)
    value_feature = tl.arange(0, VALUE_FEATURES)
    is_result = is_row[:, None] & (value_feature < VALUE_SIZE)[None, :]
    first = tl.load(own + FIRST_PART) + own_item
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.full([ROWS], 0.0, tl.float32)
    summed = tl.full([ROWS, VALUE_FEATURES], 0.0, tl.float32)
    for split in tl.range(0, num_splits, loop_unroll_factor=4):
        place = (first + split) * tl.num_programs(1) + tl.program_id(1)
        row = place * ROWS + tl.arange(0, ROWS)
        weight = tl.load(weights + row, mask=is_row, other=float("-inf"))
        at = row[:, None] * VALUE_SIZE + value_feature[None, :]
        part = tl.load(parts + at, mask=is_result, other=0)
        largest, share, kept = _weighed(weight[:, None], largest)
        summed = summed * kept[:, None] + part * share
        total = total * kept + sum_of(share, 1)
    total = tl.where(total == 0, 1.0, total)
    row = (tl.load(own + FIRST_TOKEN) + token) * NUM_HEADS + head
    _store(output, summed / total[:, None], row, is_row, VALUE_SIZE, VALUE_FEATURES)
