from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.speculation import Algorithm, SpecSettings, num_candidates
from backend_caps.runtime.speculative.ngram import HostTree, NgramIndex
from tests.property.strategies import law


class _Limits(NamedTuple):
    max_match: int = 12
    max_recent: int = 8


_DEFAULTS = _Limits()


def _sizes(topk: int, num_steps: int, num_draft_tokens: int) -> SpecSettings:
    return SpecSettings(
        algorithm=Algorithm.NGRAM, topk=topk, num_steps=num_steps, num_draft_tokens=num_draft_tokens
    )


@st.composite
def _any_sizes(draw: st.DrawFn) -> SpecSettings:
    topk, num_steps = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    most = num_candidates(topk, num_steps) + 1
    return _sizes(topk, num_steps, draw(st.integers(num_steps + 1, most)))


# The length is drawn first: lists that may have any length are mostly short.
_TEXTS = st.tuples(st.integers(1, 6), st.integers(1, 40)).flatmap(
    lambda sizes: st.lists(st.integers(0, sizes[0] - 1), min_size=sizes[1], max_size=sizes[1])
)
_LIMITS = st.builds(_Limits, st.integers(1, 6), st.integers(1, 3))


def _index(tokens: Sequence[int], limits: _Limits = _DEFAULTS) -> NgramIndex:
    index = NgramIndex(max_match=limits.max_match, max_recent=limits.max_recent)
    index.extend(tokens)
    return index


def _paths(tree: HostTree) -> list[tuple[int, ...]]:
    """Spell out each node: the tokens from the root's child down to it."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths


def _rescanned_places(tokens: list[int], limits: _Limits) -> Iterator[int]:
    for length in range(min(limits.max_match, len(tokens)), 0, -1):
        ends = [
            end
            for end in range(len(tokens) - 1, length - 1, -1)
            if tokens[end - length : end] == tokens[-length:]
        ]
        yield from ends[: limits.max_recent]


def _rescanned(tokens: list[int], limits: _Limits, sizes: SpecSettings) -> list[tuple[int, ...]]:
    """Find a tree's nodes by reading the whole context again; padding is not among them."""
    nodes: list[tuple[int, ...]] = [()]
    for end in _rescanned_places(tokens, limits):
        ahead = list(tokens)
        for step in range(sizes.num_steps):
            ahead.append(ahead[end + step])
        for depth in range(1, sizes.num_steps + 1):
            path = tuple(ahead[len(tokens) : len(tokens) + depth])
            siblings = [other for other in nodes if len(other) == depth and other[:-1] == path[:-1]]
            if path not in nodes and len(siblings) == sizes.topk:
                break
            if path not in nodes:
                nodes.append(path)
    return nodes[: sizes.num_draft_tokens]


@given(tokens=_TEXTS, limits=_LIMITS, sizes=_any_sizes())
@law
def test_drafts_are_what_a_rescan_finds(
    tokens: list[int], limits: _Limits, sizes: SpecSettings
) -> None:
    """The index finds the same continuations, in the same order, as reading the context again."""
    found = _rescanned(tokens, limits, sizes)

    assert _paths(_index(tokens, limits).draft(sizes))[: len(found)] == found


@given(tokens=_TEXTS, limits=_LIMITS, sizes=_any_sizes())
@law
def test_padding_is_what_no_continuation_fills(
    tokens: list[int], limits: _Limits, sizes: SpecSettings
) -> None:
    """Nodes beyond those that a rescan finds have tokens below topk, which any vocabulary has."""
    num_found = len(_rescanned(tokens, limits, sizes))

    tree = _index(tokens, limits).draft(sizes)

    assert all(0 <= token < sizes.topk for token in tree.tokens[num_found:])


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_tree_is_one_that_a_verify_takes(tokens: list[int], sizes: SpecSettings) -> None:
    """Padding included, siblings differ, none has too many, and no node is too deep."""
    tree = _index(tokens).draft(sizes)

    paths = _paths(tree)
    assert len(set(paths)) == len(paths) == sizes.num_draft_tokens
    assert max(Counter(tree.parents[1:]).values()) <= sizes.topk
    assert tree.depths == [len(path) for path in paths]
    assert max(tree.depths) <= sizes.num_steps


@given(tokens=_TEXTS, cuts=st.lists(st.integers(0, 40)), limits=_LIMITS, sizes=_any_sizes())
@law
def test_pieces_make_the_index_of_the_whole(
    tokens: list[int], cuts: list[int], limits: _Limits, sizes: SpecSettings
) -> None:
    """Tokens that come piece by piece, with drafts between, are found like those of one extend."""
    index = _index(tokens[:1], limits)

    for start, end in pairwise(sorted([1, len(tokens), *(max(1, cut) for cut in cuts)])):
        index.extend(tokens[start:end])
        index.draft(sizes)

    assert _paths(index.draft(sizes)) == _paths(_index(tokens, limits).draft(sizes))


@pytest.mark.parametrize("period", [1, 2, 7, 30])
@pytest.mark.parametrize("num_steps", [1, 3, 5])
def test_repeated_text_is_drafted_in_full(period: int, num_steps: int) -> None:
    """Once a text repeats itself, every chain is its true continuation to the last token."""
    text = [token % period + 100 for token in range(4 * period + num_steps)]
    index = _index(text[: period + 1])

    drafted = []
    for place in range(period + 1, 4 * period):
        drafted.append(index.draft(_sizes(1, num_steps, num_steps + 1)).tokens[1:])
        index.extend(text[place : place + 1])

    expected = [text[place : place + num_steps] for place in range(period + 1, 4 * period)]
    assert drafted == expected


def test_padding_starts_at_the_root() -> None:
    """Where nothing is found, padding fills the root's children first, then theirs."""
    tree = _index([7]).draft(_sizes(2, 2, 6))

    assert (tree.tokens, tree.parents) == ([7, 0, 1, 0, 1, 0], [0, 0, 0, 1, 1, 2])


def test_draft_without_tokens_is_refused() -> None:
    """An index that was given nothing has no root to draft from."""
    index = NgramIndex()

    with pytest.raises(AssertionError, match="a tree's root is the last token"):
        index.draft(_sizes(1, 1, 2))


def test_tree_without_room_is_refused() -> None:
    """A tree that cannot have so many nodes is refused, with its sizes."""
    index = _index([1, 2])

    with pytest.raises(AssertionError, match="a tree of 8 tokens has no room in 2 steps of 2"):
        index.draft(_sizes(2, 2, 8))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param(_Limits(max_match=0), "no match has 0 tokens", id="an empty match"),
        pytest.param(_Limits(max_recent=0), "0 places of a suffix", id="no place"),
    ],
)
def test_index_refuses_limits_that_find_nothing(limits: _Limits, message: str) -> None:
    """Limits within which nothing could ever be found are refused."""
    with pytest.raises(AssertionError, match=message):
        _index([1], limits)
