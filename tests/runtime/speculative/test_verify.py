from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps.runtime.speculative.tree import accepted
from tests.property.strategies import law
from tests.runtime.speculative.drafted import RNGS, HostTree, tree_of

_STEPS = st.integers(1, 5)


def _predicted(rng: random.Random, tree: HostTree, odds: float) -> list[int]:
    """Draw what the target says at each node: with some odds what a child of it has."""
    said = []
    for node in range(len(tree.tokens)):
        children = [n for n in range(1, len(tree.tokens)) if tree.parents[n] == node]
        agrees = bool(children) and rng.random() < odds
        said.append(tree.tokens[rng.choice(children)] if agrees else rng.randrange(9))
    return said


def _repeated(path: list[int], length: int) -> list[int]:
    return [*path, *[path[-1]] * (length - len(path))]


@law
@given(rng=RNGS, num_steps=_STEPS, is_chain=st.booleans(), odds=st.sampled_from([0.0, 0.8, 1.0]))
def test_accepted_is_the_walk_from_the_root(
    rng: random.Random, num_steps: int, odds: float, *, is_chain: bool
) -> None:
    """From the root on, the child that the target named comes next, until it named none."""
    trees = [
        HostTree.chain(rng, num_steps + 1) if is_chain else HostTree.drawn(rng, 10, num_steps)
        for _ in range(3)
    ]
    predicted = [_predicted(rng, tree, odds) for tree in trees]

    result = accepted(
        tree_of(trees, num_steps, is_chain=is_chain),
        torch.tensor(predicted),
        num_steps=num_steps,
    )

    paths = [tree.accepted(said) for tree, said in zip(trees, predicted, strict=True)]
    assert result.accept_lens.tolist() == [len(path) for path in paths]
    assert result.path.tolist() == [_repeated(path, num_steps + 1) for path in paths]


@law
@given(rng=RNGS, num_steps=_STEPS)
def test_new_tokens_are_the_target_s_along_the_path(rng: random.Random, num_steps: int) -> None:
    """A step's tokens are what the target named at accepted nodes; the last one is the bonus."""
    tree = HostTree.drawn(rng, 10, num_steps)
    predicted = _predicted(rng, tree, 0.8)

    result = accepted(tree_of([tree], num_steps), torch.tensor([predicted]), num_steps=num_steps)

    named = [predicted[node] for node in tree.accepted(predicted)]
    assert result.tokens.tolist() == [_repeated(named, num_steps + 1)]
    assert result.bonus_tokens.tolist() == named[-1:]


def test_token_of_another_branch_is_not_accepted() -> None:
    """A node is accepted behind its own parent alone, whatever its cousins have."""
    tree = HostTree(tokens=[0, 1, 2, 7, 8], parents=[0, 0, 0, 1, 2])

    result = accepted(tree_of([tree], 2), torch.tensor([[2, 7, 7, 5, 5]]), num_steps=2)

    assert result.path.tolist() == [[0, 2, 2]]
    assert result.tokens.tolist() == [[2, 7, 7]]


def test_root_is_accepted_whatever_it_is() -> None:
    """The root was chosen before, so that the target names it at no node is no matter."""
    tree = HostTree(tokens=[4, 1], parents=[0, 0])

    result = accepted(tree_of([tree], 1, is_chain=True), torch.tensor([[6, 6]]), num_steps=1)

    assert result.accept_lens.tolist() == [1]
    assert result.bonus_tokens.tolist() == [6]


def test_chain_and_tree_of_one_branch_agree() -> None:
    """A chain is accepted as the tree that it is."""
    rng = random.Random(0)  # noqa: S311 - drafts
    chains = [HostTree.chain(rng, 6) for _ in range(50)]
    predicted = torch.tensor([_predicted(rng, chain, 0.8) for chain in chains])

    as_chain = accepted(tree_of(chains, 5, is_chain=True), predicted, num_steps=5)
    as_tree = accepted(tree_of(chains, 5), predicted, num_steps=5)

    assert torch.equal(as_chain.path, as_tree.path)
    assert set(as_chain.accept_lens.tolist()) == {1, 2, 3, 4, 5, 6}
