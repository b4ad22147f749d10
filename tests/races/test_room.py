"""Prompts that join running requests leave them the pages that their drafts reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.runtime.request import Sampling
from backend_caps.runtime.speculation import Algorithm, SpecSettings
from tests.races.engine_setup import make_engine
from tests.races.traces import Backends, Speculation, Trace

pytestmark = pytest.mark.slow

_CHAIN = SpecSettings(algorithm=Algorithm.STANDALONE, topk=1, num_steps=3, num_draft_tokens=4)


def crowded(num_pages: int) -> Trace:
    """Let many requests run in few pages, while prompts join their steps in chunks."""
    speculation = Speculation(settings=_CHAIN, host_seq_lens=HostSeqLens.NONE, two_batch=False)
    return replace(
        Trace.drafting(0),
        speculation=speculation,
        backends=Backends.PADDED,
        replayed=None,
        overlapped=True,
        mixed=True,
        page_size=1,
        max_running_requests=32,
        max_total_tokens=num_pages,
        chunked_prefill_size=4,
    )


@pytest.mark.parametrize("num_pages", [120, 140, 180, 200])
def test_mixed_steps_of_many_drafts_have_their_pages(num_pages: int, folder: Path) -> None:
    """However full the KV cache is, a prompt takes no page that a running request's step needs."""
    trace = crowded(num_pages)

    outputs = make_engine(trace, folder, "cpu").generate(
        [[place, 7 * place % 64, 3] for place in range(12)],
        sampling=Sampling(max_new_tokens=20, stop_token_ids=frozenset()),
    )

    assert [len(output) for output in outputs] == [20] * 12
