from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from backend_caps.relay import RowCountError
from backend_caps.runtime.pipeline import stash_received
from tests.relay.batches import decode_batch
from tests.relay.fake_streams import FakeModule, FakeStreams, StreamOperators
from tests.runtime.pipeline_stand_in import make_rank


@dataclass
class Arrival:
    """A receive whose tokens come when somebody waits for it."""

    tokens: Tensor
    sent: Tensor
    module: FakeModule | None = None

    def wait(self) -> None:
        """Let the tokens arrive."""
        self.tokens.copy_(self.sent)
        if self.module is not None:
            self.module.log.append(f"{self.module.current.name}: received")


def _arrival(sent: list[int], module: FakeModule | None = None) -> Arrival:
    return Arrival(torch.full((len(sent),), -1), torch.tensor(sent), module)


def test_stash_waits_for_the_receive() -> None:
    """What the relay holds is what came, and not what the buffer held before."""
    rank = make_rank()
    arrival = _arrival([8, 9])
    step = decode_batch([3, 1])

    stash_received(
        rank.relay,
        step.req_pool_indices,
        arrival.tokens,
        arrival,
        forward_stream=rank.step_streams.forward,
    )

    rank.relay.set_input_ids_sentinel(step)
    rank.relay.resolve_future(step)
    assert step.input_ids is not None
    assert step.input_ids.tolist() == [8, 9]


def test_stash_of_received_tokens_is_the_forward_streams() -> None:
    """Receive and stash are on the forward stream, in this order."""
    module = FakeModule(("schedule-1", "forward", "host-copy"))
    rank = make_rank(streams=FakeStreams(module))
    arrival = _arrival([8, 9], module)
    forward = rank.step_streams.forward

    module.log.clear()
    with StreamOperators(module):
        stash_received(
            rank.relay, torch.tensor([3, 1]), arrival.tokens, arrival, forward_stream=forward
        )

    on_forward = [line for line in module.log if line.startswith("forward: ")]
    assert on_forward[-2:] == ["forward: received", "forward: scatter_"]


def test_received_tokens_are_kept_until_they_are_stashed() -> None:
    """Nobody gets the memory of tokens or rows before the forward stream has read them."""
    streams = FakeStreams(FakeModule(("schedule-1", "forward", "host-copy")))
    rank = make_rank(streams=streams)
    arrival = _arrival([8, 9])
    forward, rows = rank.step_streams.forward, torch.tensor([3, 1])

    stash_received(rank.relay, rows, arrival.tokens, arrival, forward_stream=forward)

    assert [id(own) for own in streams.kept] == [id(arrival.tokens), id(rows)]


def test_received_tokens_need_a_row_each() -> None:
    """Another number of tokens than of rows is refused."""
    rank = make_rank()
    arrival = _arrival([8, 9])
    forward = rank.step_streams.forward

    with pytest.raises(RowCountError):
        stash_received(
            rank.relay, torch.tensor([3]), arrival.tokens, arrival, forward_stream=forward
        )
