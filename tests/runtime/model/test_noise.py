from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.model.sampling import gumbel, gumbel_of, hashed

WORD = 2**64


def _splitmix64(counter: int) -> int:
    """Compute one output of SplitMix64 in Python's own integers."""
    bits = (counter + 1) * 0x9E3779B97F4A7C15 % WORD
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % WORD
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % WORD
    return bits ^ bits >> 31


def _ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_hash_is_splitmix64(device: torch.device) -> None:
    """The hash of a counter is SplitMix64's, wrapped around as the processor wraps it."""
    counters = (0, 1, 2, -1, 2**62, -(2**63), 2**63 - 1)

    found = hashed(_ints(*counters).to(device)).tolist()

    assert [bits % WORD for bits in found] == [_splitmix64(counter % WORD) for counter in counters]


def test_hash_begins_with_the_published_number() -> None:
    """The first output of SplitMix64 seeded with 0 is the one that its authors give."""
    first = hashed(_ints(0)).item() % WORD

    assert first == 0xE220A8397B1DCDAF


def test_noise_is_gumbel_s(device: torch.device) -> None:
    """A million draws have the distribution function of Gumbel, by Kolmogorov and Smirnov."""
    draws = gumbel(_ints(7, 8).to(device), _ints(0, 0).to(device), 500_000).flatten().double()

    expected = torch.exp(-torch.exp(-draws.sort().values))
    steps = torch.linspace(0, 1, draws.numel(), dtype=torch.float64, device=device)
    # Beyond 1.95 / sqrt(n) lies one seed in a thousand.
    assert (expected - steps).abs().max() < 1.95 / math.sqrt(draws.numel())


@pytest.mark.parametrize(
    ("seed", "position"), [pytest.param(1, 5, id="seed"), pytest.param(0, 6, id="position")]
)
def test_noise_of_another_seed_or_position_is_unrelated(seed: int, position: int) -> None:
    """A neighbouring seed or position has noise that correlates with none of the other's."""
    one, other = gumbel(_ints(0, seed), _ints(5, position), 100_000)

    correlation = torch.corrcoef(torch.stack((one, other)))[0, 1]

    assert correlation.abs() < 0.015


def test_noise_of_neighbours_along_both_axes_is_unrelated() -> None:
    """No request meets another's noise some tokens on, as neighbouring counters would."""
    noise = gumbel(torch.arange(64), torch.arange(64).flip(0), 512)

    distinct = len(set(noise.flatten().tolist()))

    # float32 rounds a few numbers together; a shared diagonal would be a fiftieth of them.
    assert distinct > 0.99 * noise.numel()


def test_noise_is_finite_at_both_ends(device: torch.device) -> None:
    """The least bits make the largest noise and the most the smallest, neither of them infinite."""
    largest, smallest = gumbel_of(_ints(0, -1).to(device)).tolist()

    assert largest == pytest.approx(54 * math.log(2))
    assert smallest == pytest.approx(-math.log(53 * math.log(2)))


def test_noise_of_a_request_is_the_same_in_any_batch(device: torch.device) -> None:
    """A row of the noise is a function of its seed and position, bit by bit."""
    seeds, positions = torch.arange(37, device=device), torch.arange(37, device=device) * 3

    together = gumbel(seeds, positions, 1001)
    alone = [gumbel(seeds[i : i + 1], positions[i : i + 1], 1001) for i in range(37)]

    assert torch.equal(together, torch.cat(alone))
