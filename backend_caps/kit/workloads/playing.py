"""Play stories: plainly, or overlapped as an engine runs them.

Overlapped, the schedule stream is behind the last step's reads, makes a step's tensors and writes
the page table; the forward stream waits for it, and runs the step. The host waits for nothing:
it reads all results at the end.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from backend_caps.kit.rig import Rig, on_host
from backend_caps.kit.scenes import Scene, moved
from backend_caps.kit.workloads.host_cache import Written
from backend_caps.kit.workloads.sequences import Story, Turn
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.runtime.staging import Staging

SCHEDULE, FORWARD = 1, 2
"""Handles of the two streams of an overlapped story on the simulated device; a backend's own
come behind them."""
Supply = Callable[[Scene], Scene]
"""Gives a scene the host lengths that it comes with."""


class Player:
    """Run the turns of a story through one backend, within `Rig.running`.

    Args:
        rig: builds the backend.
        story: what is played.
        supply: gives each batch its host lengths; by default those that the backend claims to need.
        overlapped: whether schedule and forward have a stream each, and the host waits for neither.
    """

    def __init__(
        self, rig: Rig, story: Story, *, supply: Supply | None = None, overlapped: bool = False
    ) -> None:
        self._story = story
        self._supply = supply or rig.supply
        self._overlapped = overlapped
        self._streams = rig.streams()
        self._staging = Staging(self._streams)
        main = self._streams.current_stream()
        self._schedule = self._streams.private_stream() if overlapped else main
        self._forward = self._streams.private_stream() if overlapped else main
        device = self._streams.device
        self._pools = moved(story.pools, lambda own: own.to(device, copy=True))
        build: Callable[..., AttentionBackend] = rig.subject.build
        self.backend = build(self._pools)
        self._streams.synchronize()

    def outputs(self) -> Sequence[Tensor]:
        """Play it whole, and read all results at the end.

        returns  [T, Hq, Dv] for each turn, host
        """
        found = [self._run(turn) for turn in self._story.turns]
        with self._streams.using(self._forward):
            read = [on_host(own) for own in found]
        self._streams.synchronize()  # what a backend still has under way may read the pools
        return read

    def output(self, turn: Turn) -> Tensor:
        """Play one turn, and read its result: [T, Hq, Dv], host."""
        found = self._run(turn)
        with self._streams.using(self._forward):
            return on_host(found)

    def bring(self, turn: Turn) -> Scene:
        """Make a turn's tensors on the device, and write what comes before its forward.

        Stream: the schedule stream, then the forward stream. Sync: none where there is pinned
        memory.
        """
        supplied = self._supply(turn.scene)
        with self._streams.using(self._schedule):
            self._enter(turn.written)
            batch = moved(supplied.batch, self._carry)
        self._forward.wait_stream(self._schedule)
        with self._streams.using(self._forward):
            moved(batch, self._keep)
            self._fill(turn.written)
            q, k, v = (self._carry(own) for own in (turn.scene.q, turn.scene.k, turn.scene.v))
        return replace(supplied, pools=self._pools, batch=batch, q=q, k=k, v=v)

    def _run(self, turn: Turn) -> Tensor:
        """Run a turn: [T, Hq, Dv], device."""
        scene = self.bring(turn)
        with self._streams.using(self._forward):
            self.backend.init_forward_metadata(scene.batch)
            output = scene.forward(self.backend)
        if self._overlapped:
            self._schedule.wait_stream(self._forward)
        else:
            self._streams.synchronize()
        return output

    def _enter(self, written: Written) -> None:
        if written.entries.shape[1]:
            rows, positions, slots = self._carry(written.entries).unbind()
            table = self._pools.req_to_token
            table[rows, positions] = slots.to(table.dtype)

    def _fill(self, written: Written) -> None:
        if len(written.slots):
            carried = map(self._carry, (written.slots, written.keys, written.values))
            self._pools.set_kv_buffer(None, *carried)

    def _carry(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device; where that is the host, the story keeps its own."""
        return self._staging.carry(tensor.clone())

    def _keep(self, tensor: Tensor) -> Tensor:
        self._streams.keep_alive(tensor)
        return tensor
