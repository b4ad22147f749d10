"""What both loops around a FutureMap are made of: streams, uploads, and tokens on their way back.

Shapes: B requests in the batch, N numbers, C columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend_caps.relay.streams import DeviceStreams, EventLike, StepStreams
from tests.races.cases import Fault, Finding

POISON = 1 << 31
"""No number of a loop is as large: what is, nobody wrote, or somebody freed."""


@dataclass(slots=True)
class Batch:
    """The fields of `RelayBatch`."""

    req_pool_indices: Tensor
    req_pool_indices_cpu: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor | None = None
    seq_lens_sum: int | None = None
    seq_lens_cpu_upper_bound: Tensor | None = None
    input_ids: Tensor | None = None
    input_ids_pending: bool = False
    prefill_input_ids_cpu: Tensor | None = None
    mix_running_indices: Tensor | None = None
    spec_info: SpecState | None = None


@dataclass(slots=True)
class SpecState:
    """A draft worker's state."""

    topk_p: Tensor | None = None
    topk_index: Tensor | None = None
    bonus_tokens: Tensor | None = None
    hidden_states: Tensor | None = None


class Lines:
    """The streams of a loop, and what goes over them."""

    def __init__(self) -> None:
        self.streams = DeviceStreams("sim")
        self.on = StepStreams.drawn_from(self.streams)
        self.prebuilt = self.streams.private_stream()
        """Where requests enter that were prefilled elsewhere."""

    def pin(self, numbers: Sequence[int]) -> Tensor:
        """Put numbers into pinned memory."""
        return self.streams.empty_pinned(len(numbers)).copy_(torch.tensor(numbers))

    def upload(self, numbers: Sequence[int]) -> Tensor:
        """Copy numbers to the device, on the current stream."""
        return self.pin(numbers).to(self.streams.device, non_blocking=True)

    def to_host(self, values: Tensor) -> tuple[Tensor, EventLike]:
        """Copy [C, B] to the host behind the forward; the event tells when it is there."""
        pinned = self.streams.empty_pinned(values.numel()).view(values.shape)
        self.on.host_copy.wait_stream(self.on.forward)
        copied = self.streams.event()
        with self.streams.using(self.on.host_copy):
            pinned.copy_(values, non_blocking=True)
            copied.record(self.on.host_copy)
        return pinned, copied


@dataclass(slots=True)
class Checks:
    """Compare what the device made with what it should have made."""

    found: list[Finding] = field(default_factory=list)
    held: list[tuple[Tensor, list[int]]] = field(default_factory=list)
    """Host tensors that a step was given, and what they held then."""

    def equal(self, what: str, actual: Sequence[int], expected: Sequence[int]) -> None:
        """Require equal numbers."""
        if list(actual) == list(expected):
            return
        is_poison = any(abs(number) >= POISON for number in actual)
        fault = Fault.POISON if is_poison else Fault.VALUE
        text = f"{what} are {list(actual)}, not {list(expected)}"
        self.found.append(Finding(fault=fault, what=text))

    def hold(self, tensor: Tensor, expected: Sequence[int]) -> None:
        """Require a host tensor to have these numbers, now and when all is over."""
        self.equal("host lengths", tensor.tolist(), expected)
        self.held.append((tensor, tensor.tolist()))

    def findings(self) -> Iterator[Finding]:
        """List what was found, once the device has run everything."""
        for tensor, before in self.held:
            self.equal("a step's host lengths, later,", tensor.tolist(), before)
        yield from self.found
