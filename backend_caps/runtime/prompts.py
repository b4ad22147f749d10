"""Prompts as callers give them, refused where they could never run."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

from backend_caps.runtime.errors import PromptError, RequestTooLongError
from backend_caps.runtime.memory import RequestMemory

_CACHE = "the KV cache"


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
    limits = {
        "the context": memory.rows.max_context_len,
        _CACHE: memory.pages.num_pages * memory.page_size,
    }
    for name, limit in limits.items():
        behind = memory.rows.lookahead if name == _CACHE else 0
        if num_prompt_tokens + max_new_tokens - 1 + behind > limit:
            raise RequestTooLongError(
                num_prompt_tokens=num_prompt_tokens,
                max_new_tokens=max_new_tokens,
                limit=limit,
                limited_by=name,
                lookahead=behind,
            )
