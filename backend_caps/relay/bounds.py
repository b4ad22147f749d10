"""Upper bounds of the sequence lengths, kept on the host by counting steps instead of copying.

The host learns a step's lengths only when its result is processed, a step or more after the next
one was launched. Until then it knows two things of a row: the last length that was processed, and
how many steps were launched. With at most A tokens accepted by a step,

    bound = last committed length + A x (steps launched - steps committed)

The protocol has two calls, and rows are recycled while steps are in flight, so each names whom it
speaks of:

* A **generation** is one request's stay in a row. The scheduler numbers them: a later stay in the
  same row has the larger number. The relay never makes one up.
* `commit` with a larger generation than the row's **opens** it: the length is what the request
  has committed before its first step (for a new one its whole prompt, whatever was prefilled of
  it by then), and no step is in flight. It comes before the generation's first `launch`.
* `launch` is a speculative step of the row's open generation, `count` a plain decode step of it:
  that one adds a token too.
* `commit` with the row's generation is a processed step of it. It ends one step in flight if
  the length grew, as every step's length does, since every step accepts at least one token. A
  prefill is no step: its result is not committed once the generation is open. Where it is all the
  same, the whole prompt's length does not grow, and changes nothing.
* `commit` with a smaller generation is of a request that has left the row, and changes nothing.

So the bound never falls below the truth: let the committed length be the one after step j. Every
counted commit moved it to a later step's, so at most j commits were counted, so at least
(launched - j) steps are counted as in flight, and each added at most A. A commit that comes twice
does not grow and is not counted; one that comes late or never leaves the bound too high by A. Row 0
is the padding row and has no bound of its own.

The context's length is no bound. In an overlapped loop the device passes it before the host knows
that the request is done, and steps that start above it are launched. What no length exceeds is the
width of a row of `req_to_token`: beyond it memory would be overwritten.

Shapes: P rows in the request pool, B requests in a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend_caps.relay.errors import RelayError

# Below every generation that a scheduler numbers, so that generation 0 opens a row.
_NOBODY = -1


class LengthBounds:
    """Keep an upper bound of every row's length.

    Args:
        pool_size: P, row 0 included.
        accept_tokens: the most tokens that one step can accept, the bonus token included.
        max_context_len: the width of a row of `req_to_token`, which no step starts above; None
            where nobody knows.
    """

    def __init__(self, pool_size: int, accept_tokens: int, max_context_len: int | None) -> None:
        self._accept_tokens = accept_tokens
        self._max_context_len = max_context_len
        self._committed = torch.zeros(pool_size, dtype=torch.int64, device="cpu")
        self._in_flight = torch.zeros(pool_size, dtype=torch.int64, device="cpu")
        self._generation = torch.full_like(self._in_flight, _NOBODY)

    def launch(self, rows_cpu: Tensor) -> Tensor:
        """Count a step of these rows, and return the bounds of the lengths it starts from.

        rows_cpu  [B] int64 or int32, host  unique rows; row 0 may repeat

        Exact: an upper bound of each row's committed length before this step.
        """
        committed = self._committed.index_select(0, rows_cpu)
        bounds = torch.add(committed, self.count(rows_cpu), alpha=self._accept_tokens)
        return bounds if self._max_context_len is None else bounds.clamp_(max=self._max_context_len)

    def count(self, rows_cpu: Tensor) -> Tensor:
        """Count a step of these rows, and return how many were in flight before it.

        rows_cpu  [B] int64 or int32, host  unique rows; row 0 may repeat
        """
        in_flight = self._in_flight.index_select(0, rows_cpu)
        self._in_flight[rows_cpu] = in_flight + 1
        self._in_flight[0] = 0
        return in_flight

    def commit(self, rows_cpu: Tensor, lens_cpu: Tensor, generation: Tensor) -> None:
        """Take in exact lengths: of requests that enter their rows, or of a processed step.

        A request enters with its whole prompt's length; results of its prefill are no steps.

        rows_cpu    [B] int64 or int32, host  unique rows; row 0 may repeat
        lens_cpu    [B] int64, host  tokens committed per request
        generation  [B] int64, host  the stay in its row that each length is of
        """
        stored = self._generation[rows_cpu]
        committed = self._committed[rows_cpu]
        in_flight = self._in_flight[rows_cpu]
        opens = generation > stored
        grows = (generation == stored) & (lens_cpu > committed)
        left = (in_flight - grows.to(torch.int64)).clamp_(min=0).masked_fill_(opens, 0)
        self._generation[rows_cpu] = torch.maximum(generation, stored)
        self._committed[rows_cpu] = torch.where(opens | grows, lens_cpu, committed)
        self._in_flight[rows_cpu] = left


# What SGLang 0.5.13 adds to the context for the width of a row (mem_cache/common.py), beside the
# tokens of a step.
_EXTRA_WIDTH = 4


def row_width(context_length: int | None, accept_tokens: int | None) -> int | None:
    """Return the width of a row of `req_to_token`.

    No step starts above it: with one step in flight while the host learns of the crossing, a step
    starts at most `accept_tokens` above the context.
    """
    if context_length is None or accept_tokens is None:
        return None
    return context_length + _EXTRA_WIDTH + accept_tokens


def unknown_accept_tokens() -> RelayError:
    """Return the error of an upper bound without the most tokens that a step can accept."""
    return RelayError(
        "accept-tokens",
        "host_seq_lens is 'upper_bound' and the most tokens that a step can accept is unknown; "
        "a speculative map needs it for the bound. Give DraftShape(accept_tokens=...) or "
        "--speculative-num-draft-tokens.",
    )
