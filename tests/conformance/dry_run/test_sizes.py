"""How a server's sizes become those of a small run, and what is drawn for it."""

from __future__ import annotations

from itertools import islice

import pytest

from backend_caps import Capabilities, Declaration, Phase, Plan, Role, ServerFlags, Use, resolve
from backend_caps.conformance.dry_run import ServerSizes, Sizes
from backend_caps.conformance.dry_run.sizes import LONGEST_CHUNK, MOST_NEW, MOST_REQUESTS
from backend_caps.conformance.dry_run.trace import drawn


def _plan(**flags: object) -> Plan:
    declaration = Declaration(capabilities=Capabilities(page_sizes="any", roles=frozenset(Role)))
    uses = [
        Use(backend="own", role=Role.TARGET, phase=phase, declaration=declaration)
        for phase in (Phase.PREFILL, Phase.DECODE)
    ]
    return resolve(uses, ServerFlags.model_validate(flags))


def test_small_sizes_are_the_servers() -> None:
    """What is small on the server is the same here."""
    server = ServerSizes(max_running_requests=3, chunked_prefill_size=32)

    sizes = Sizes.of(_plan(page_size=16), server)

    assert (sizes.max_running_requests, sizes.chunked_prefill_size) == (3, 32)
    assert sizes.page_size == 16


def test_large_sizes_are_cut_down() -> None:
    """What is large on the server is smaller here."""
    server = ServerSizes(max_running_requests=256, chunked_prefill_size=8192)

    sizes = Sizes.of(_plan(context_length=131072), server)

    assert (sizes.max_running_requests, sizes.chunked_prefill_size) == (
        MOST_REQUESTS,
        LONGEST_CHUNK,
    )
    assert sizes.context_length == 2 * LONGEST_CHUNK + MOST_NEW


@pytest.mark.parametrize(
    ("said", "page_size", "chunk"),
    [
        pytest.param(-1, 1, None, id="prompts are not cut"),
        pytest.param(16, 64, 64, id="no chunk is below a page"),
        pytest.param(None, 1, LONGEST_CHUNK, id="not given"),
    ],
)
def test_chunk_is_what_the_engine_can_run(
    said: int | None, page_size: int, chunk: int | None
) -> None:
    """Prompts are cut as the server cuts them, within what a small run has."""
    sizes = Sizes.of(_plan(page_size=page_size), ServerSizes(chunked_prefill_size=said))

    assert sizes.chunked_prefill_size == chunk


def test_short_context_keeps_prompts_short() -> None:
    """No drawn request comes to more than the server's context."""
    sizes = Sizes.of(_plan(context_length=40), ServerSizes())

    arrivals = islice(drawn(sizes, vocab_size=8, seed=1), 30)

    longest = max(len(own.prompt) + own.sampling.max_new_tokens for own in arrivals)
    assert longest <= sizes.context_length == 40


def test_trace_mixes_lengths_of_prompts() -> None:
    """Of drawn prompts some are short, and some longer than a chunk."""
    sizes = Sizes.of(_plan(), ServerSizes())

    lengths = [len(own.prompt) for own in islice(drawn(sizes, vocab_size=8, seed=1), 9)]

    assert min(lengths) <= 16 < LONGEST_CHUNK < max(lengths)


def test_trace_is_the_same_by_its_seed() -> None:
    """One seed draws one trace."""
    sizes = Sizes.of(_plan(), ServerSizes())

    one, other = ([*islice(drawn(sizes, vocab_size=8, seed=5), 6)] for _ in range(2))

    assert one == other
