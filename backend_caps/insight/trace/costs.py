"""What things cost on the clock of a recording: a model, and no measurement."""

from __future__ import annotations

from dataclasses import dataclass

from backend_caps.simulator.queues import Op

CLOCK_SAYS = "the recording's, which counts chosen costs; nothing was measured"
"""What times on this clock mean."""
_PRODUCTS = frozenset(
    f"aten::{name}"
    for name in ("addmm", "bmm", "linear", "matmul", "mm", "scaled_dot_product_attention")
)
"""Operators that read weights, or a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What each thing takes, in nanoseconds.

    The numbers are chosen, and measured nowhere: round ones, of the order that a server with one
    GPU has, and such that the device is busier than the host, as with a large model. An operator's
    cost does not hang on its shapes, because the models that run are small and the servers that
    are meant are not. So the picture says what waits for what; how long a server's step takes, and
    whether its host keeps ahead, it does not say.
    """

    python_call_ns: int = 1_000
    """A call of a function of relay and runtime, with the lines of its own."""
    launch_ns: int = 8_000
    """The host's share of an operator."""
    replay_ns: int = 12_000
    """The host's share of a graph, however many operators it has."""
    event_ns: int = 1_000
    """The host's share of recording an event, or of making a stream wait for one."""
    op_ns: int = 3_000
    """An operator on the device."""
    product_ns: int = 24_000
    """An operator that reads weights or a cache."""
    copy_ns: int = 6_000
    """What a copy between host and device takes beside its bytes."""
    bytes_per_ns: int = 24
    """How fast they cross."""

    def of(self, op: Op) -> int:
        """Return how long an operator runs; it is longer than nothing."""
        num_bytes = op.bytes_to_host + op.bytes_to_device
        if num_bytes:
            return self.copy_ns + num_bytes // self.bytes_per_ns
        return self.product_ns if op.name.partition(".")[0] in _PRODUCTS else self.op_ns
