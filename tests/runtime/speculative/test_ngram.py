from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.speculation import num_candidates
from backend_caps.runtime.speculative.ngram import HostTree, NgramIndex
from tests.property.strategies import law


class _Sizes(NamedTuple):
    topk: int
    num_steps: int
    num_draft_tokens: int


class _Limits(NamedTuple):
    max_match: int = 12
    min_match: int = 1
    max_recent: int = 8


_DEFAULTS = _Limits()


def _any_sizes() -> st.SearchStrategy[_Sizes]:
    return st.tuples(st.integers(1, 4), st.integers(1, 5)).flatmap(_any_count)


def _any_count(sizes: tuple[int, int]) -> st.SearchStrategy[_Sizes]:
    topk, num_steps = sizes
    most = num_steps if topk == 1 else num_candidates(topk, num_steps)
    return st.integers(num_steps + 1, most + 1).map(lambda nodes: _Sizes(topk, num_steps, nodes))


# The length is drawn first: lists that may have any length are mostly short.
_TEXTS = st.tuples(st.integers(1, 6), st.integers(1, 40)).flatmap(
    lambda sizes: st.lists(st.integers(0, sizes[0] - 1), min_size=sizes[1], max_size=sizes[1])
)
_LIMITS = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3)).map(
    lambda drawn: _Limits(max(drawn[:2]), min(drawn[:2]), drawn[2])
)


def _index(tokens: Sequence[int], limits: _Limits = _DEFAULTS) -> NgramIndex:
    index = NgramIndex(
        max_match=limits.max_match, min_match=limits.min_match, max_recent=limits.max_recent
    )
    index.extend(tokens)
    return index


def _draft(index: NgramIndex, sizes: _Sizes) -> HostTree:
    return index.draft(
        topk=sizes.topk, num_steps=sizes.num_steps, num_draft_tokens=sizes.num_draft_tokens
    )


def _paths(tree: HostTree) -> list[tuple[int, ...]]:
    """Spell out each node: the tokens from the root's child down to it."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths


def _rescanned_places(tokens: list[int], limits: _Limits) -> Iterator[int]:
    for length in range(min(limits.max_match, len(tokens)), limits.min_match - 1, -1):
        ends = [
            end
            for end in range(len(tokens) - 1, length - 1, -1)
            if tokens[end - length : end] == tokens[-length:]
        ]
        yield from ends[: limits.max_recent]


def _rescanned(tokens: list[int], limits: _Limits, sizes: _Sizes) -> list[tuple[int, ...]]:
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
def test_drafts_are_what_a_rescan_finds(tokens: list[int], limits: _Limits, sizes: _Sizes) -> None:
    """The index finds the same continuations, in the same order, as reading the context again."""
    found = _rescanned(tokens, limits, sizes)

    tree = _draft(_index(tokens, limits), sizes)

    assert _paths(tree)[: len(found)] == found


@given(tokens=_TEXTS, limits=_LIMITS, sizes=_any_sizes())
@law
def test_padding_is_what_no_continuation_fills(
    tokens: list[int], limits: _Limits, sizes: _Sizes
) -> None:
    """Nodes beyond those that a rescan finds have tokens below topk, which any vocabulary has."""
    num_found = len(_rescanned(tokens, limits, sizes))

    tree = _draft(_index(tokens, limits), sizes)

    assert all(0 <= token < sizes.topk for token in tree.tokens[num_found:])


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_tree_has_as_many_nodes_as_asked(tokens: list[int], sizes: _Sizes) -> None:
    """A tree has num_draft_tokens nodes, whatever was found."""
    tree = _draft(_index(tokens), sizes)

    counts = {len(tree.tokens), len(tree.parents), len(tree.depths)}
    assert counts == {sizes.num_draft_tokens}


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_root_is_the_last_token(tokens: list[int], sizes: _Sizes) -> None:
    """Node 0 is the last token, at depth 0, and its own parent."""
    tree = _draft(_index(tokens), sizes)

    assert (tree.tokens[0], tree.parents[0], tree.depths[0]) == (tokens[-1], 0, 0)


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_parents_come_before_their_children(tokens: list[int], sizes: _Sizes) -> None:
    """A node's parent has a smaller number than the node."""
    tree = _draft(_index(tokens), sizes)

    assert all(0 <= parent < node for node, parent in enumerate(tree.parents[1:], start=1))


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_siblings_differ(tokens: list[int], sizes: _Sizes) -> None:
    """No two nodes continue the same parent by the same token."""
    paths = _paths(_draft(_index(tokens), sizes))

    assert len(set(paths)) == len(paths)


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_no_node_has_more_than_topk_children(tokens: list[int], sizes: _Sizes) -> None:
    """A node has at most topk children, padding included."""
    tree = _draft(_index(tokens), sizes)

    assert max(Counter(tree.parents[1:]).values()) <= sizes.topk


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_depth_is_the_length_of_the_path(tokens: list[int], sizes: _Sizes) -> None:
    """A node's depth is the number of tokens from the root to it."""
    tree = _draft(_index(tokens), sizes)

    assert list(tree.depths) == [len(path) for path in _paths(tree)]


@given(tokens=_TEXTS, sizes=_any_sizes())
@law
def test_no_node_is_deeper_than_the_steps(tokens: list[int], sizes: _Sizes) -> None:
    """Padding goes no deeper than drafts may."""
    tree = _draft(_index(tokens), sizes)

    assert max(tree.depths) <= sizes.num_steps


@given(tokens=_TEXTS, num_steps=st.integers(1, 5))
@law
def test_one_candidate_makes_a_chain(tokens: list[int], num_steps: int) -> None:
    """With topk 1 each node continues the one before it."""
    tree = _draft(_index(tokens), _Sizes(1, num_steps, num_steps + 1))

    assert tree.parents == (0, *range(num_steps))


@given(tokens=_TEXTS, cuts=st.lists(st.integers(0, 40)), limits=_LIMITS, sizes=_any_sizes())
@law
def test_pieces_make_the_index_of_the_whole(
    tokens: list[int], cuts: list[int], limits: _Limits, sizes: _Sizes
) -> None:
    """Tokens that come piece by piece, with drafts between, are found like those of one extend."""
    index = _index(tokens[:1], limits)

    for start, end in pairwise(sorted([1, len(tokens), *(max(1, cut) for cut in cuts)])):
        index.extend(tokens[start:end])
        _draft(index, sizes)

    assert _draft(index, sizes) == _draft(_index(tokens, limits), sizes)


@pytest.mark.parametrize("period", [1, 2, 7, 30])
@pytest.mark.parametrize("num_steps", [1, 3, 5])
def test_repeated_text_is_drafted_in_full(period: int, num_steps: int) -> None:
    """Once a text repeats itself, every chain is its true continuation to the last token."""
    text = [token % period + 100 for token in range(4 * period + num_steps)]
    index = _index(text[: period + 1])

    drafted = []
    for place in range(period + 1, 4 * period):
        drafted.append(_draft(index, _Sizes(1, num_steps, num_steps + 1)).tokens[1:])
        index.extend(text[place : place + 1])

    expected = [tuple(text[place : place + num_steps]) for place in range(period + 1, 4 * period)]
    assert drafted == expected


@pytest.mark.parametrize(
    ("tokens", "limits", "expected"),
    [
        pytest.param([1, 2, 30, 9, 2, 40, 1, 2], _DEFAULTS, 30, id="longest, not the latest"),
        pytest.param([2, 30, 2, 40, 2], _DEFAULTS, 40, id="latest of one length"),
        pytest.param([1, 2, 30, 9, 2, 40, 1, 2], _Limits(max_match=1), 40, id="longest cut short"),
        pytest.param([2, 30, 2], _Limits(min_match=2), 0, id="a match too short"),
        pytest.param([1, 2, 30, 1, 2], _Limits(min_match=2), 30, id="a match just long enough"),
        pytest.param([5, 6, 7], _DEFAULTS, 0, id="nothing came before"),
        pytest.param([5], _DEFAULTS, 0, id="one token"),
    ],
)
def test_first_draft_continues_the_best_match(
    tokens: list[int], limits: _Limits, expected: int
) -> None:
    """The first draft is what followed the longest suffix last; padding where there is none."""
    tree = _draft(_index(tokens, limits), _Sizes(1, 1, 2))

    assert tree.tokens[1] == expected


@pytest.mark.parametrize(
    ("max_recent", "expected"),
    [
        pytest.param(1, (2, 50, 0, 1), id="the last place"),
        pytest.param(2, (2, 50, 40, 0), id="two places"),
        pytest.param(3, (2, 50, 40, 30), id="all places"),
    ],
)
def test_candidates_are_the_latest_places(max_recent: int, expected: tuple[int, ...]) -> None:
    """A suffix that came often is continued as in its latest places, the last one first."""
    index = _index([2, 30, 2, 40, 2, 50, 2], _Limits(max_recent=max_recent))

    tree = _draft(index, _Sizes(3, 1, 4))

    assert tree.tokens == expected


def test_shorter_matches_fill_the_tree() -> None:
    """Behind the continuation of the longest match come those of shorter ones, as branches."""
    index = _index([1, 2, 30, 31, 9, 2, 40, 41, 1, 2])

    tree = _draft(index, _Sizes(2, 2, 5))

    assert (tree.tokens, tree.parents) == ((2, 30, 31, 40, 41), (0, 0, 1, 0, 3))


def test_branches_end_at_topk() -> None:
    """A continuation that would be a node's child beyond topk is left out."""
    index = _index([2, 30, 2, 40, 2, 50, 2])

    tree = _draft(index, _Sizes(2, 2, 6))

    assert (tree.tokens, tree.parents) == ((2, 50, 2, 40, 2, 0), (0, 0, 1, 0, 3, 1))


def test_padding_starts_at_the_root() -> None:
    """Where nothing is found, padding fills the root's children first, then theirs."""
    tree = _draft(_index([7]), _Sizes(2, 2, 6))

    assert (tree.tokens, tree.parents) == ((7, 0, 1, 0, 1, 0), (0, 0, 0, 1, 1, 2))


def test_length_counts_the_tokens() -> None:
    """An index's length is that of the text it was given."""
    index = _index([4, 4, 5])

    index.extend([6, 7])

    assert len(index) == 5


def test_draft_without_tokens_is_refused() -> None:
    """An index that was given nothing has no root to draft from."""
    index = NgramIndex()

    with pytest.raises(AssertionError, match="a tree's root is the last token"):
        _draft(index, _Sizes(1, 1, 2))


def test_tree_without_room_is_refused() -> None:
    """A tree that cannot have so many nodes is refused, with its sizes."""
    index = _index([1, 2])

    with pytest.raises(AssertionError, match="a tree of 8 tokens has no room in 2 steps of 2"):
        _draft(index, _Sizes(2, 2, 8))


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param(_Limits(min_match=0), "no match has 0 to 12 tokens", id="an empty match"),
        pytest.param(_Limits(2, 3), "no match has 3 to 2 tokens", id="bounds crossed"),
        pytest.param(_Limits(max_recent=0), "0 places of a suffix", id="no place"),
    ],
)
def test_index_refuses_limits_that_find_nothing(limits: _Limits, message: str) -> None:
    """Limits within which nothing could ever be found are refused."""
    with pytest.raises(AssertionError, match=message):
        _index([1], limits)
