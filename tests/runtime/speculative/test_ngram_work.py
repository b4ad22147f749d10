"""What an index costs, counted in looks at tokens: no clock is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest

from backend_caps.runtime.speculation import Algorithm, SpecSettings
from backend_caps.runtime.speculative.ngram import NgramIndex

_MAX_MATCH = 12
_MAX_RECENT = 8
_SETTINGS = SpecSettings(algorithm=Algorithm.NGRAM, topk=4, num_steps=5, num_draft_tokens=32)
_RANDOM = random.Random(0)  # noqa: S311 - a text, no secret
_NOISE = [_RANDOM.randrange(50) for _ in range(8000)]

_TEXTS = [
    pytest.param(lambda _: 7, id="one token"),
    pytest.param(lambda place: place % 40, id="a period"),
    pytest.param(lambda place: _NOISE[place], id="noise"),
]


class _Counted(int):
    """A token that counts how often any is hashed or compared."""

    num_looks: ClassVar[int] = 0

    def __hash__(self) -> int:
        _Counted.num_looks += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        _Counted.num_looks += 1
        return int.__eq__(self, other)


def _looks(act: Callable[[], object]) -> int:
    before = _Counted.num_looks
    act()
    return _Counted.num_looks - before


def _text(word: Callable[[int], int], length: int) -> list[int]:
    return [_Counted(word(place)) for place in range(length)]


def _index(text: list[int]) -> NgramIndex:
    index = NgramIndex(max_match=_MAX_MATCH, max_recent=_MAX_RECENT)
    index.extend(text)
    return index


def _draft_looks(index: NgramIndex) -> int:
    return _looks(partial(index.draft, _SETTINGS))


@pytest.mark.parametrize("word", _TEXTS)
def test_draft_looks_at_a_bounded_number_of_tokens(word: Callable[[int], int]) -> None:
    """A draft after 8000 tokens looks at no more than its limits allow after any number."""
    index = _index(_text(word, 8000))

    num_looks = _draft_looks(index)

    # A look-up hashes and compares; a node is hashed once more to be stored.
    most = 2 * _MAX_MATCH * (1 + _MAX_RECENT * _SETTINGS.num_steps) + 3 * _SETTINGS.num_draft_tokens
    assert 0 < num_looks <= most


@pytest.mark.parametrize("word", _TEXTS)
def test_append_looks_at_a_bounded_number_of_tokens(word: Callable[[int], int]) -> None:
    """No token of 8000 costs more than a look-up and a store for each length of a suffix."""
    index = _index([])

    looks = [_looks(partial(index.extend, [token])) for token in _text(word, 8000)]

    assert 0 < max(looks) <= 3 * _MAX_MATCH


@pytest.mark.parametrize("word", _TEXTS[:2])
def test_draft_of_a_repeated_text_costs_the_same_at_any_length(word: Callable[[int], int]) -> None:
    """Eight times the context takes as many looks for the next draft."""
    short, long = _index(_text(word, 1000)), _index(_text(word, 8000))

    looks = [_draft_looks(short), _draft_looks(long)]

    assert looks[0] == looks[1]
