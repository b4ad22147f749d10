"""The kernels as torch's operators: with schemas, so that whatever runs operators runs them.

They write to arguments and return nothing. Shapes follow from arguments' shapes, and no operator
reads a value on the host, so a graph may hold them, and the compiler leaves them whole.

Shapes: B requests and T tokens in the batch, P rows in the request pool, L the longest context, S
slots in the KV cache, Hq query heads, Hk key and value heads, D and Dv their sizes, M entries in a
tree mask, W items of work, H blocks of heads, R rows of an item, Q parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
import triton.language as tl  # type: ignore[import-untyped] # Triton ships no types
from torch import Tensor

from backend_caps_triton.attending import attend_kernel, combine_kernel
from backend_caps_triton.planning import copy_slots_kernel, plan_kernel
from backend_caps_triton.tiling import Tiling, ceil_div

_Launch = Callable[..., object]
_REQUESTS_AT_ONCE = 256
_SLOTS_AT_ONCE = 1024
_DTYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


class _Kernel(Protocol):
    """What `triton.jit` makes of a function."""

    def __getitem__(self, grid: tuple[int, ...]) -> _Launch:
        """Choose how many programs run."""


def runnable(kernel: _Kernel, device: torch.device) -> _Kernel:
    """Return what runs a kernel on a device: itself, or on the host what the simulator runs.

    The simulated device hands operators tensors of the host.
    """
    if device.type != "cpu":
        return kernel
    from backend_caps.simulator.kernels.host import HostKernel  # noqa: PLC0415 - no server has it

    return HostKernel(kernel)


@torch.library.custom_op("backend_caps_triton::plan", mutates_args=("slots", "requests", "owners"))
def plan(  # noqa: PLR0913, PLR0917 - an operator's schema is flat
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor | None,
    req_to_token: Tensor,
    slots: Tensor,
    requests: Tensor,
    owners: Tensor,
    num_tokens: int,
    tile: int,
    num_shares: int,
    min_chunk: int,
) -> None:
    """Cut a forward into items of work, and copy what it reads of the page table.

    req_pool_indices  [B] int64, device  0 is padding
    seq_lens          [B] int64, device
    extend_seq_lens   [B] int32 or int64, device, or None where each request brings T / B
    req_to_token      [P, L] int32 or int64, device
    slots             [B, L] int32, device  written as far as contexts go
    requests          [B, 8] int64, device  written
    owners            [W] int32, device  written

    Stream: the current one. Sync: none. Allocates: nothing. Keeps: nothing. Capture: yes.
    Exact: the items of all requests are at most `num_shares` and their tiles.
    """
    num_requests = req_pool_indices.shape[0]
    if num_requests == 0:
        owners.fill_(-1)
        return
    runnable(plan_kernel, seq_lens.device)[(num_requests,)](
        req_pool_indices,
        seq_lens,
        extend_seq_lens,
        requests,
        owners,
        num_requests,
        num_tokens // num_requests,
        owners.shape[0],
        num_shares,
        HAS_COUNTS=extend_seq_lens is not None,
        TILE=tile,
        MIN_CHUNK=min_chunk,
        BLOCK=_REQUESTS_AT_ONCE,
    )
    stretches = ceil_div(req_to_token.shape[1], _SLOTS_AT_ONCE)
    runnable(copy_slots_kernel, seq_lens.device)[(num_requests, stretches)](
        req_pool_indices,
        seq_lens,
        req_to_token,
        slots,
        req_to_token.stride(0),
        slots.stride(0),
        BLOCK=_SLOTS_AT_ONCE,
    )


@torch.library.custom_op("backend_caps_triton::attend", mutates_args=("parts", "weights", "output"))
def attend(  # noqa: PLR0913, PLR0917 - an operator's schema is flat
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    requests: Tensor,
    owners: Tensor,
    tree_mask: Tensor | None,
    parts: Tensor,
    weights: Tensor,
    output: Tensor,
    scaling: float,
    tile: int,
) -> None:
    """Attend from a batch's tokens to their contexts, as `plan` has cut them.

    q          [T, Hq, D], device  heads side by side
    keys       [S, Hk, D], device
    values     [S, Hk, Dv], device
    slots      [B, L] int32, device
    requests   [B, 8] int64, device
    owners     [W] int32, device
    tree_mask  [M] bool, device, or None where each token sees all before it
    parts      [Q, H, R, Dv] float32, device  written
    weights    [Q, H, R] float32, device  written
    output     [T, Hq, Dv], device  written, but for tokens that no request owns

    Stream: the current one. Sync: none. Allocates: nothing. Keeps: nothing. Capture: yes.
    Exact: over what each token sees, summed in float32.
    """
    sizes = Tiling.of(q, keys, values, tile)
    grid = (owners.shape[0], sizes.head_blocks)
    common = {
        "NUM_HEADS": q.shape[1],
        "GROUP_SIZE": q.shape[1] // keys.shape[1],
        "VALUE_SIZE": values.shape[2],
        "GROUP": sizes.group,
        "TILE": tile,
        "ROWS": sizes.rows,
        "VALUE_FEATURES": sizes.value_features,
        "num_warps": sizes.num_warps,
    }
    runnable(attend_kernel, q.device)[grid](
        q,
        keys,
        values,
        slots,
        requests,
        owners,
        None if tree_mask is None else tree_mask.view(torch.uint8),
        parts,
        weights,
        output,
        q.stride(0),
        *keys.stride()[:2],
        *values.stride()[:2],
        slots.stride(0),
        scaling * math.log2(math.e),
        HEAD_SIZE=q.shape[2],
        HAS_MASK=tree_mask is not None,
        DOT=_DTYPES[q.dtype],
        STEP=sizes.step,
        FEATURES=sizes.features,
        num_stages=sizes.num_stages,
        **common,
    )
    runnable(combine_kernel, q.device)[grid](parts, weights, requests, owners, output, **common)
