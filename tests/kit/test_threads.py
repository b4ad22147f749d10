from __future__ import annotations

import torch

from backend_caps.kit import single_threaded


def test_one_thread_computes_within_the_block() -> None:
    """Behind it as many compute as before."""
    before = torch.get_num_threads()

    torch.set_num_threads(2)
    with single_threaded():
        within = torch.get_num_threads()
    behind = torch.get_num_threads()

    torch.set_num_threads(before)
    assert (within, behind) == (1, 2)
