from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from backend_caps.runtime.model.config import MAX_VOCAB_SIZE
from backend_caps.runtime.model.sampling import (
    SamplingBatch,
    allowed_tokens,
    gumbel,
    gumbel_of,
    hashed,
    sample_tokens,
)

NUM_DRAWS, NUM_TOKENS = 20_000, 8
SCORES = torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0, 2.5, 0.5, -3.0])
"""From the likeliest on: tokens 1, 5, 2, 0, 6, 3, 4, 7."""
# The chi-square distribution with n degrees of freedom is above this once in a thousand times.
CHI_SQUARE_999 = {1: 10.83, 2: 13.82, 7: 24.32}


def _draws(num: int, temperature: float = 1.0, **limits: float) -> SamplingBatch:
    """Ask for one token at each of so many positions of one request."""
    return SamplingBatch(
        temperature=torch.full((num,), temperature),
        seeds=torch.full((num,), 42),
        positions=torch.arange(num),
        top_k=torch.full((num,), int(limits["top_k"])) if "top_k" in limits else None,
        top_p=torch.full((num,), limits["top_p"]) if "top_p" in limits else None,
    )


def _counts(sampling: SamplingBatch) -> Tensor:
    tokens = sample_tokens(SCORES.expand(NUM_DRAWS, -1), sampling)
    return tokens.bincount(minlength=NUM_TOKENS)


def _chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * NUM_DRAWS
    return float(((counts - expected) ** 2 / expected).sum())


def _only(allowed: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Compute the probabilities where only some tokens are allowed."""
    masked = torch.full_like(SCORES, -torch.inf)
    masked[list(allowed)] = SCORES[list(allowed)]
    return torch.softmax(masked / temperature, dim=0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampling_draws_from_the_softmax(temperature: float) -> None:
    """Tokens come as often as the softmax of the scores over the temperature says."""
    counts = _counts(_draws(NUM_DRAWS, temperature))

    assert _chi_square(counts, _only(range(NUM_TOKENS), temperature)) < CHI_SQUARE_999[7]


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        pytest.param({"top_k": 3}, (1, 5, 2), id="top_k"),
        # The first three have 0.44, 0.27 and 0.16; the first two, among themselves, 0.62 and 0.38.
        pytest.param({"top_p": 0.4}, (1,), id="top_p below the likeliest"),
        pytest.param({"top_p": 0.6}, (1, 5), id="top_p"),
        pytest.param({"top_k": 4, "top_p": 0.9}, (1, 5, 2), id="both"),
        pytest.param({"top_k": 2, "top_p": 0.55}, (1,), id="top_p of what top_k leaves"),
        pytest.param({"top_k": 1}, (1,), id="one token"),
        pytest.param({"top_k": 0}, (1,), id="no token is the likeliest"),
        pytest.param({"top_p": 0.0}, (1,), id="no probability is the likeliest"),
        pytest.param({"top_k": 100}, range(8), id="top_k above the vocabulary"),
        pytest.param({"top_p": 1.0}, range(8), id="all the probability"),
    ],
)
def test_sampling_draws_among_what_is_allowed(
    limits: dict[str, float], allowed: Sequence[int]
) -> None:
    """No other token comes, and each of these comes."""
    counts = _counts(_draws(NUM_DRAWS, **limits))

    assert set(counts.nonzero().flatten().tolist()) == set(allowed)


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        pytest.param({"top_k": 3}, (1, 5, 2), id="top_k"),
        pytest.param({"top_p": 0.6}, (1, 5), id="top_p"),
    ],
)
def test_allowed_tokens_keep_their_odds(limits: dict[str, float], allowed: Sequence[int]) -> None:
    """Among what is allowed, tokens come as often as the softmax over these says."""
    counts = _counts(_draws(NUM_DRAWS, **limits))

    probabilities = _only(allowed)[list(allowed)]
    assert _chi_square(counts[list(allowed)], probabilities) < CHI_SQUARE_999[len(allowed) - 1]


def test_token_too_unlikely_to_weigh_is_allowed_with_all() -> None:
    """Where the whole probability is allowed, so is a token that no sum notices."""
    scores = torch.tensor([[0.0, -40.0]])

    everything = allowed_tokens(scores, _draws(1, top_p=1.0))
    nearly = allowed_tokens(scores, _draws(1, top_p=0.999))

    assert everything.tolist() == [[True, True]]
    assert nearly.tolist() == [[True, False]]


def test_equal_scores_are_allowed_from_the_first_on() -> None:
    """Of equal scores the limits leave the first tokens."""
    allowed = allowed_tokens(torch.zeros(2, 100), _draws(2, top_k=50, top_p=0.5))

    assert allowed.nonzero()[:, 1].tolist() == [*range(25), *range(25)]


def test_weights_of_the_largest_vocabulary_are_summed_exactly() -> None:
    """Half the probability of as many equal scores as a config allows is exactly half of them."""
    allowed = allowed_tokens(torch.zeros(1, MAX_VOCAB_SIZE), _draws(1, top_p=0.5))

    assert int(allowed.sum()) == MAX_VOCAB_SIZE // 2
    assert bool(allowed[0, : MAX_VOCAB_SIZE // 2].all())


def test_vocabulary_that_no_sum_holds_is_refused() -> None:
    """Scores of more tokens than a config allows are refused before their weights are summed."""
    scores = torch.zeros(1, MAX_VOCAB_SIZE + 1, device="meta")
    sampling = SamplingBatch(
        temperature=scores[:, 0], seeds=scores[:, 0], positions=scores[:, 0], top_p=scores[:, 0]
    )

    with pytest.raises(AssertionError, match="4194305 tokens overflow int64"):
        allowed_tokens(scores, sampling)


def test_zero_temperature_is_the_argmax() -> None:
    """A request at temperature 0 gets the likeliest token, whatever else it asks for."""
    logits = torch.randn(50, 33, generator=torch.Generator().manual_seed(0))

    tokens = sample_tokens(logits, _draws(50, 0.0, top_k=5, top_p=0.5))

    assert torch.equal(tokens, logits.argmax(dim=-1))


def test_masked_token_never_comes() -> None:
    """A token whose score is minus infinity is not chosen, by the noise neither."""
    scores = SCORES.clone()
    scores[1] = -torch.inf

    tokens = sample_tokens(scores.expand(1000, -1), _draws(1000, 100.0))

    assert set(tokens.tolist()) == {0, 2, 3, 4, 5, 6, 7}


def _mixed(device: torch.device) -> tuple[Tensor, SamplingBatch]:
    """Make a batch in which everybody asks for something else."""
    logits = 3 * torch.randn(24, 1000, generator=torch.Generator().manual_seed(1))
    sampling = SamplingBatch(
        temperature=torch.tensor([0.0, 0.7, 1.0, 1.5], device=device).repeat(6),
        seeds=torch.arange(24, device=device) * 11,
        positions=torch.arange(24, device=device) + 100,
        top_k=torch.tensor([1, 20, 2**40], device=device).repeat(8),
        top_p=torch.tensor([0.9, 1.0], device=device).repeat(12),
    )
    return logits.to(device), sampling


def _rows(sampling: SamplingBatch, rows: Tensor) -> SamplingBatch:
    """Take some of a batch's requests, in this order."""
    return SamplingBatch(
        **{own.name: getattr(sampling, own.name)[rows] for own in fields(sampling)}
    )


@pytest.mark.parametrize("size", [1, 5, 24])
def test_token_is_the_same_in_any_batch(device: torch.device, size: int) -> None:
    """A request gets the same token alone, among others, and in another order."""
    logits, sampling = _mixed(device)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(2)).to(device)

    together = sample_tokens(logits, sampling)
    parts = [sample_tokens(logits[own], _rows(sampling, own)) for own in torch.split(order, size)]

    assert torch.equal(torch.cat(parts), together[order])


def test_neighbour_s_limits_change_nothing(device: torch.device) -> None:
    """A request without limits gets the same token beside one that has some."""
    logits, sampling = _mixed(device)
    unlimited = torch.arange(24, device=device) % 6 == 5

    among_others = sample_tokens(logits, sampling)
    by_themselves = sample_tokens(logits, replace(sampling, top_k=None, top_p=None))

    assert torch.equal(among_others[unlimited], by_themselves[unlimited])


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

    assert torch.corrcoef(torch.stack((one, other)))[0, 1].abs() < 0.015


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
