"""How each request of a step wants its token chosen, on the device.

Shapes: B requests in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.runtime.batch import ScheduleBatch
from backend_caps.runtime.model.sampling import SamplingBatch
from backend_caps.runtime.staging import Staging

_FIXED_ONE = 2.0**32


def sampling_of(batch: ScheduleBatch, staging: Staging) -> SamplingBatch | None:
    """Gather how the requests' tokens are chosen; None where every one is greedy.

    A token's position is its context's length, so the noise is the same whenever it is computed.

    Stream: the current one. Sync: none. Allocates: four numbers a request, on the host and
    on the device, and floats of two of them.
    """
    wanted = [request.sampling for request in batch.requests]
    if all(own.is_greedy for own in wanted):
        return None
    columns = staging.upload(
        (
            [_fixed(0.0 if own.is_greedy else own.temperature) for own in wanted],
            [_fixed(own.top_p) for own in wanted],
            [min(own.top_k or _ALL, _ALL) for own in wanted],
            [own.seed for own in wanted],
        )
    )
    temperature, top_p, top_k, seeds = columns.unbind()
    narrows = any(own.top_k is not None or own.top_p < 1 for own in wanted)
    return SamplingBatch(
        temperature=_float(temperature),
        seeds=seeds,
        positions=batch.seq_lens,
        top_k=top_k if narrows else None,
        top_p=_float(top_p) if narrows else None,
    )


# More than any vocabulary has.
_ALL = 2**31


def _fixed(number: float) -> int:
    """Write a number as a whole one, so that one upload carries everything."""
    return round(number * _FIXED_ONE)


def _float(fixed: Tensor) -> Tensor:
    return (fixed.to(torch.float64) / _FIXED_ONE).to(torch.float32)
