"""A request: what was asked, what came of it, and where it stands in the pools.

Shapes: T tokens of the prompt, Td of them in a draft model's cache, N layers and M of the draft,
Hk key and value heads, D and Dv their sizes, K candidates, H hidden features.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from math import inf
from operator import index

from torch import Tensor

from backend_caps.runtime.errors import PromptError, RequestTooLongError, SamplingError
from backend_caps.runtime.memory import RequestMemory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptStates:
    """Keys and values of a prompt, and where its drafts go on from.

    It does not depend on the slots or pages where it stood.
    """

    keys: Tensor
    """[N, T, Hk, D]."""
    values: Tensor
    """[N, T, Hk, Dv]."""
    draft_keys: Tensor | None = None
    """[M, Td, Hk, D]; Td is T, or T + 1 where the draft has read the first token of the output.
    None where no model drafts."""
    draft_values: Tensor | None = None
    """[M, Td, Hk, Dv]."""
    topk_p: Tensor | None = None
    """[K] float32: probabilities of the first drafts."""
    topk_index: Tensor | None = None
    """[K] int64: the first drafts."""
    hidden_states: Tensor | None = None
    """[H]: where a draft head goes on from; None where the draft reads none."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors that there are, by name."""
        every = {own.name: getattr(self, own.name) for own in fields(self)}
        return {name: tensor for name, tensor in every.items() if tensor is not None}

    def only(self, names: Container[str]) -> PromptStates:
        """Leave out every tensor that is not named."""
        return PromptStates(**{name: own for name, own in self.tensors.items() if name in names})

    def mapped(self, function: Callable[[Tensor], Tensor]) -> PromptStates:
        """Do the same to every tensor."""
        return PromptStates(**{name: function(own) for name, own in self.tensors.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a request's tokens are chosen, and when they end.

    Raises:
        SamplingError: a value is out of its range.
    """

    max_new_tokens: int
    """The most tokens of the output."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int | None = None
    """Choose among so many of the likeliest tokens; None among all."""
    top_p: float = 1.0
    """Choose among the likeliest tokens whose probabilities sum up to this."""
    seed: int = 0
    """Of the noise, which is the same in any batch: from the same logits come the same tokens. On a
    device, logits of another batch size, or of prefill against decode, may round differently."""
    stop_token_ids: frozenset[int] | None = None
    """Tokens that end the output, of which they are the last; None is the model's own."""

    def __post_init__(self) -> None:
        top_k = self.top_k
        limits = (
            ("max_new_tokens", _is_whole(self.max_new_tokens, 1), "a whole number from 1"),
            ("temperature", 0 <= self.temperature < 2**31, "0 or more and below 2**31"),
            ("top_k", top_k is None or _is_whole(top_k, 1), "a whole number from 1, or None"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("seed", _is_whole(self.seed, 0, 2**63), "a whole number, 0 or more and below 2**63"),
            ("stop_token_ids", _are_tokens(self.stop_token_ids), "a frozenset of tokens, or None"),
        )
        for name, holds, expected in limits:
            if not holds:
                raise SamplingError(field=name, value=getattr(self, name), expected=expected)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always chosen."""
        return self.temperature == 0 or self.top_k == 1


def _is_whole(value: object, first: float = -inf, end: float = inf) -> bool:
    """Tell whether a value is a whole number within bounds, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and first <= value < end


def _are_tokens(value: object) -> bool:
    return value is None or (isinstance(value, frozenset) and all(map(_is_whole, value)))


class FinishReason(Enum):
    """Why a request's output ended."""

    STOP = "stop"
    """A stop token came."""
    LENGTH = "length"
    """`max_new_tokens` were made."""
    ABORT = "abort"
    """The caller gave it up."""


@dataclass(slots=True, eq=False)
class Request:
    """A prompt on its way to its output. Only the scheduler writes to it."""

    number: int
    """Its place in the order of arrival, which it keeps when it is retracted."""
    prompt: tuple[int, ...]
    """Its tokens, as they were submitted."""
    sampling: Sampling
    """How its tokens are chosen, and when they end."""
    stop_token_ids: frozenset[int]
    """Tokens that end the output."""
    output: list[int] = field(default_factory=list)
    """The tokens that the host has seen."""
    finish_reason: FinishReason | None = None
    """Why its output ended; None while it goes on."""
    row: int = 0
    """Its row in the request pool; 0, the padding row, while it has none."""
    generation: int = 0
    """The number of its stay, which no other stay has; 0 while it has none."""
    num_prefilled: int = 0
    """Tokens of this stay whose prefill was launched."""
    prefill: tuple[int, ...] = ()
    """What this stay prefills: the prompt, and whatever was made of the output before it."""
    num_launched: int = 0
    """Tokens of this stay's output that were launched, at least: a speculative step under way
    counts as one. The host may not have seen all."""
    num_steps_under_way: int = 0
    """Decode steps of this stay whose results the host has not processed."""
    num_retractions: int = 0
    states: PromptStates | None = None
    """What its prompt left in another engine, until its first stay begins; None where it runs
    here."""

    @property
    def is_finished(self) -> bool:
        """Whether its output has ended."""
        return self.finish_reason is not None

    @property
    def num_left_to_prefill(self) -> int:
        """Tokens that this stay has yet to prefill."""
        return len(self.prefill) - self.num_prefilled

    @property
    def num_made(self) -> int:
        """Tokens of this stay's output that the host has seen."""
        return len(self.prompt) + len(self.output) - len(self.prefill)

    @property
    def committed_len(self) -> int:
        """Tokens of this stay whose keys and values are stored for good, as far as the host knows.

        The last token's are not: they come with the step that it is the input of.
        """
        return len(self.prefill) + max(0, self.num_made - 1)

    @property
    def is_launched_out(self) -> bool:
        """Whether every token that it may make is made or under way."""
        num_before = len(self.prefill) - len(self.prompt)
        return num_before + self.num_launched >= self.sampling.max_new_tokens

    def enter(self, row: int, generation: int) -> None:
        """Begin a stay in a row; where the prompt ran elsewhere, with a prefill that is done."""
        self.row, self.generation = row, generation
        self.num_prefilled = self.num_launched = self.num_steps_under_way = 0
        self.prefill = (*self.prompt, *self.output)
        if self.states is not None:
            self.prefill = self.prompt
            self.num_prefilled, self.num_launched = len(self.prompt), len(self.output)

    def leave(self) -> None:
        """Release the pool row; drop results still in flight."""
        self.row = self.generation = 0

    def take_step(self, tokens: Sequence[int]) -> Sequence[int]:
        """Append what a step made, up to the end of the output; return what was appended."""
        self.num_launched += len(tokens) - 1
        if self.num_made:  # the first token is the prompt's, and no decode step's
            self.num_steps_under_way -= 1
        before = len(self.output)
        for token in tokens:
            self.take(token)
            if self.is_finished:
                break
        return self.output[before:]

    def take(self, token: int) -> None:
        """Append a token, and end the output where it is the last one."""
        self.output.append(token)
        if token in self.stop_token_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.output) >= self.sampling.max_new_tokens:
            self.finish_reason = FinishReason.LENGTH


def checked_tokens(prompt: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return a prompt's tokens; whole numbers of any kind are taken.

    Raises:
        PromptError: it is no sequence of whole numbers, it is empty, or it holds a token that the
            model does not have.
    """
    try:
        tokens = tuple(map(index, prompt))
    except TypeError as error:
        problem = f"is no sequence of whole numbers: {error}"
        raise PromptError(problem=problem, expected="a list of tokens was expected") from error
    if not tokens:
        raise PromptError(problem="holds no token", expected="at least one was expected")
    strays = sorted(token for token in tokens if not 0 <= token < vocab_size)
    if strays:
        expected = f"the model's are 0 to {vocab_size - 1}"
        raise PromptError(problem=f"holds token {strays[0]}", expected=expected)
    return tokens


def check_length(num_prompt_tokens: int, max_new_tokens: int, memory: RequestMemory) -> None:
    """Refuse a request that could never run. Its last token's keys are not stored.

    Speculative steps write behind its end, so its pages have to reach further.

    Raises:
        RequestTooLongError: it is longer than the context, or than the whole KV cache.
    """
    rows, num_slots = memory.rows, memory.pages.num_pages * memory.page_size
    limits = (("the context", rows.max_context_len, 0), ("the KV cache", num_slots, rows.lookahead))
    for name, limit, behind in limits:
        if num_prompt_tokens + max_new_tokens - 1 + behind > limit:
            raise RequestTooLongError(
                num_prompt_tokens=num_prompt_tokens,
                max_new_tokens=max_new_tokens,
                limit=limit,
                limited_by=name,
                lookahead=behind,
            )
