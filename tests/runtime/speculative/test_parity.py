"""Whatever is drafted, and whatever the host has of lengths: the target says the same."""

from __future__ import annotations

import pytest
import torch

from backend_caps.runtime.speculative.settings import Algorithm
from tests.runtime.engines import leaks, run
from tests.runtime.speculative.grid import Mirror, Way, cover, make_engine
from tests.runtime.speculative.oracle import Targets

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

WAYS = [pytest.param(way, id=str(way)) for way in cover()]
OVERLAPPED = [pytest.param(True, id="overlapped"), pytest.param(False, id="plain")]


@pytest.mark.parametrize("way", WAYS)
def test_speculated_tokens_equal_those_of_transformers(
    targets: Targets, device: torch.device, way: Way
) -> None:
    """Every algorithm, tree, mirror and loop gives the tokens of 40 prompts by transformers."""
    target = targets.of(way.algorithm)
    engine = make_engine(targets, way, device=device)

    tokens = run(engine, target.jobs)

    assert (tokens, leaks(engine)) == (target.tokens, (0, 0))


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("mirror", Mirror)
@pytest.mark.parametrize("overlapped", OVERLAPPED)
def test_ways_of_the_grid_relay_what_they_say(
    targets: Targets, algorithm: Algorithm, mirror: Mirror, overlapped: bool
) -> None:
    """An engine's relay brings to the host what its way says, so that the grid holds all modes."""
    way = Way(algorithm=algorithm, mirror=mirror, overlapped=overlapped)

    engine = make_engine(targets, way)

    assert engine.relay.host_seq_lens is way.relays
