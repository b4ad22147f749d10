"""Torch's own watch over what makes the host wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def syncs_forbidden() -> Iterator[None]:
    """Let torch raise where the host waits for a CUDA device, in an operator or for a stream.

    A wait for an event or for the whole device is none that it sees.
    """
    try:
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
