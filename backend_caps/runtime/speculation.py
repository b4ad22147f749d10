"""How a server speculates: which algorithm, and how large its trees are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Self

from backend_caps.resolution.flags import ServerFlags
from backend_caps.runtime.errors import EngineError


class Algorithm(Enum):
    """Where drafts come from."""

    EAGLE = "EAGLE"
    """A draft head of EAGLE 1 or 2, which continues from the target's last hidden states."""
    EAGLE3 = "EAGLE3"
    """A draft head that reads hidden states of several of the target's layers."""
    STANDALONE = "STANDALONE"
    """A small model of its own."""
    NGRAM = "NGRAM"
    """What followed the same tokens before, looked up on the host."""


_DEFAULT_STEPS = 3
_MOST_STEPS = 64
"""Far beyond what pays: a draft that deep is hardly ever right, and each step has its slots."""
_DEFAULT_TREE = 8
"""Tokens of a tree that is no chain, where no flag says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecSettings:
    """What a speculative step is made of."""

    algorithm: Algorithm
    topk: int
    """K: candidates that each draft step keeps; 1 is a chain."""
    num_steps: int
    """S: the depth of a tree."""
    num_draft_tokens: int
    """N: tokens that a verify takes of each request, its last one, the tree's root, included."""

    @classmethod
    def from_flags(cls, flags: ServerFlags) -> Self | None:
        """Read a server's flags; None where it does not speculate.

        What is not given is a chain of 3 steps, or of as many as its tokens say; of a tree, 8
        tokens or all that it can have. A chain has as many tokens as steps and its root, whatever
        the flags say beside them, as in SGLang.

        Raises:
            EngineError: `speculation`: an algorithm that this engine does not have, or sizes that
                make no tree.
        """
        if flags.speculative_algorithm is None:
            return None
        algorithm = Algorithm.__members__.get(flags.speculative_algorithm)
        if algorithm is None:
            expected = f"one of {', '.join(sorted(Algorithm.__members__))}"
            raise misfit("--speculative-algorithm", flags.speculative_algorithm, expected)
        topk, given = flags.speculative_eagle_topk or 1, flags.speculative_num_draft_tokens
        num_steps = flags.speculative_num_steps
        if num_steps is None:
            num_steps = given - 1 if topk == 1 and given is not None else _DEFAULT_STEPS
        if not 1 <= num_steps <= _MOST_STEPS:
            raise misfit("--speculative-num-steps", num_steps, f"1 to {_MOST_STEPS}")
        return cls(
            algorithm=algorithm,
            topk=topk,
            num_steps=num_steps,
            num_draft_tokens=_num_draft_tokens(topk, num_steps, given),
        )

    @property
    def has_draft_model(self) -> bool:
        """Whether a model drafts, and not the host."""
        return self.algorithm is not Algorithm.NGRAM

    @property
    def accept_tokens(self) -> int:
        """The most tokens that one step adds to a context."""
        return self.num_steps + 1

    @property
    def is_chain(self) -> bool:
        """Whether every draft has one continuation."""
        return self.topk == 1

    @property
    def prompt_slots(self) -> int:
        """The slots behind a prompt that its step writes to: a small model reads one token more."""
        return 1 if self.algorithm is Algorithm.STANDALONE else 0

    @property
    def lookahead(self) -> int:
        """How far behind the longest context a step may write.

        The host learns one step late that a context is complete, so one more step starts behind it.
        """
        return self.accept_tokens + self.num_slots

    @property
    def num_slots(self) -> int:
        """The most slots behind a context that the forwards of one step write to."""
        drafted = 1 + (self.num_steps - 1) * self.topk
        return max(self.num_draft_tokens, drafted, 1 + self.accept_tokens)


def misfit(flag: str, value: object, expected: str) -> EngineError:
    """Refuse the value of a flag."""
    return EngineError(
        "speculation",
        f"{flag} is {value!r}; {expected} was expected. Give such a value, or leave it to the "
        f"engine's default.",
    )


def num_candidates(topk: int, num_steps: int) -> int:
    """Count the drafts that a tree is chosen from."""
    return topk + (num_steps - 1) * topk * topk


def _num_draft_tokens(topk: int, num_steps: int, given: int | None) -> int:
    if topk == 1:
        return num_steps + 1
    most = num_candidates(topk, num_steps) + 1
    if given is None:
        return min(_DEFAULT_TREE, most)
    if not num_steps < given <= most:
        raise misfit(
            "--speculative-num-draft-tokens",
            given,
            f"a number from {num_steps + 1} to {most}, for {num_steps} steps of {topk} candidates,",
        )
    return given
