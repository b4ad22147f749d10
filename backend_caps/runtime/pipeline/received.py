"""Tokens on their way back: the last rank chooses them, and the first rank's next step reads them.

Shapes: B requests in the step.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from backend_caps.relay import FutureMap, RelayPayload
from backend_caps.relay.streams import StreamLike


class Receipt(Protocol):
    """A receive under way: `torch.distributed.Work`."""

    def wait(self) -> object:
        """Order the current stream behind the receive, or the host where it is the host's."""


def stash_received(
    relay: FutureMap,
    req_pool_indices: Tensor,
    tokens: Tensor,
    receipt: Receipt,
    *,
    forward_stream: StreamLike,
) -> None:
    """Put a step's tokens, which another rank chose, where this rank's next step reads them.

    A rank that does not run the last stage makes no tokens. Call this for every step in the order
    of the steps, before the next step of its requests is launched: then `resolve_future` of that
    step reads these tokens, and a row that has a new request since gets its own ones later.

    relay             of this rank
    req_pool_indices  [B] int64 or int32, device  rows of a step that was launched; row 0 may repeat
    tokens            [B] int64, device or host  what the receive fills

    Stream: `forward_stream`, on which the receive comes first, then the stash.
    Sync: none where the receive is the device's; the host waits for one that is the host's (gloo).
    Allocates: a copy of host tokens. Keeps: `tokens` and `req_pool_indices` until `forward_stream`
    is done with them; pinned tokens are not to be filled anew before that.
    Capture: no; it waits for another rank. Exact: other rows keep the last step's token.

    Raises:
        RowCountError: there is not one token a row.
    """
    with relay.streams.using(forward_stream):
        receipt.wait()
        arrived = tokens.to(relay.device, non_blocking=True)
        relay.streams.keep_alive(arrived)
        relay.streams.keep_alive(req_pool_indices)
        relay.stash(req_pool_indices, RelayPayload(arrived))
