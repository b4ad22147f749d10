"""How many threads cases are computed on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def single_threaded() -> Iterator[None]:
    """Compute on one thread in a block: for tensors as small as those of cases, more only wait.

    On two busy cores, two threads took four times as long as one, spinning for one another.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
