"""Play stories: one turn after the other, or overlapped as an engine runs them.

Overlapped, the schedule stream waits for the last turn's forward, copies the next batch to the
device and writes the page table. The forward stream waits for that, and runs the turn. The host
waits for neither: it reads all results at the end.

Shapes: T tokens in a batch, Hq query heads, Dv the values' size.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from backend_caps.kit.probes.stories import Story, Turn
from backend_caps.kit.rig import Rig, on_host
from backend_caps.kit.scenarios import MOST_REQUESTS, VERIFIED, Forward, Scenario, dice_for
from backend_caps.kit.scenes import Scene, batch_of, moved, scene
from backend_caps.runtime.staging import Staging

SCHEDULE, FORWARD = 1, 2
"""Handles of the two streams of an overlapped story on the simulated device; streams that a
backend makes have higher ones."""
Supply = Callable[[Scene], Scene]
"""Gives a scene its host lengths."""


class Player:
    """Run the turns of a story through one backend, within `Rig.running`.

    Args:
        rig: builds the backend.
        story: the story to play.
        supply: gives each batch its host lengths; by default those that the backend claims.
        overlapped: whether schedule and forward have separate streams, without host waits.
    """

    def __init__(
        self, rig: Rig, story: Story, *, supply: Supply | None = None, overlapped: bool = False
    ) -> None:
        self._story, self._supply, self._overlapped = story, supply or rig.supply, overlapped
        self._streams = rig.streams()
        self._staging = Staging(self._streams)
        stream = self._streams.private_stream if overlapped else self._streams.current_stream
        self._schedule, self._forward = stream(), stream()
        self._pools = moved(story.pools, lambda tensor: tensor.to(self._streams.device, copy=True))
        self.backend = rig.build(self._pools)
        self._streams.synchronize()

    def outputs(self) -> Sequence[Tensor]:
        """Play the whole story, and read all results at the end.

        returns  [T, Hq, Dv] for each turn, host
        """
        outputs = [self._run(turn) for turn in self._story.turns]
        with self._streams.using(self._forward):
            outputs = [on_host(output) for output in outputs]
        self._streams.synchronize()  # work on a backend's other streams may still read the pools
        return outputs

    def output(self, turn: Turn) -> Tensor:
        """Play one turn, and read its result: [T, Hq, Dv], host."""
        output = self._run(turn)
        with self._streams.using(self._forward):
            return on_host(output)

    def bring(self, turn: Turn) -> Scene:
        """Copy a turn's tensors to the device, and apply its update of the pools.

        Stream: the schedule stream, then the forward stream. Sync: none where the host has pinned
        memory.
        """
        supplied, update = self._supply(turn.scene), turn.update
        with self._streams.using(self._schedule):
            if update.entries.shape[1]:
                rows, positions, slots = self._carry(update.entries).unbind()
                table = self._pools.req_to_token
                table[rows, positions] = slots.to(table.dtype)
            batch = moved(supplied.batch, self._carry)
        self._forward.wait_stream(self._schedule)
        with self._streams.using(self._forward):
            # Allocated on the schedule stream: its allocator must not reuse the memory too early.
            moved(batch, self._keep)
            if len(update.slots):
                carried = map(self._carry, (update.slots, update.keys, update.values))
                self._pools.store(*carried)
            q, k, v = map(self._carry, (turn.scene.q, turn.scene.k, turn.scene.v))
            brought = replace(supplied, pools=self._pools, batch=batch, q=q, k=k, v=v)
            return brought.laid_out()

    def _run(self, turn: Turn) -> Tensor:
        """Run a turn: [T, Hq, Dv], device."""
        scene = self.bring(turn)
        with self._streams.using(self._forward):
            output = scene.attend(self.backend)
        if self._overlapped:
            self._schedule.wait_stream(self._forward)
        else:
            self._streams.synchronize()
        return output

    def _carry(self, tensor: Tensor) -> Tensor:
        """Copy a tensor to the device; cloned, as on the CPU the story's tensor must not change."""
        return self._staging.carry(tensor.clone())

    def _keep(self, tensor: Tensor) -> Tensor:
        self._streams.keep_alive(tensor)
        return tensor


_FORWARDS = (Forward.DECODE, Forward.VERIFY)
_Shape = tuple[Forward, int, int]
_NUM_LONGEST = 6
"""Distinct lengths of a batch's longest context; its other contexts are randomly shorter."""


class SteadyRun:
    """Runs decode and verify steps in one backend, within `Rig.running`.

    Batch sizes and longest contexts repeat in rounds, as buckets do; the other lengths do not. So a
    cache by bucket is full after one round, and a cache by batch grows for ever.

    Args:
        rig: the backend and its device.
        scenario: the sizes of model and cache.
        seed: the seed of lengths and rows.
    """

    def __init__(self, rig: Rig, scenario: Scenario, seed: int) -> None:
        self._rig = rig
        self._longest = scenario.max_context_len
        self._dice = dice_for(scenario, seed)
        full = (self._longest - VERIFIED, VERIFIED)
        whole = scene([full] * MOST_REQUESTS, uniform=True, setting=scenario.setting(seed))
        for cache in (whole.pools.key_buffers, whole.pools.value_buffers):
            cache.nan_to_num_()  # steps read slots that no step has written
        self._rows: list[int] = whole.batch.req_pool_indices.tolist()
        self._table_cpu = whole.pools.req_to_token.long()
        self._whole = whole.on(rig.device)
        self.backend = rig.build(self._whole.pools)
        """The backend that runs."""
        self._round: list[_Shape] = []
        self.num_steps = 0
        """Steps that ran, without those of `settle`."""

    @property
    def shapes(self) -> Sequence[_Shape]:
        """The forwards, batch sizes and longest contexts of a round."""
        lengths = torch.linspace(VERIFIED, self._longest, _NUM_LONGEST).long().tolist()
        forwards = [each for each in _FORWARDS if each.value not in self._rig.subject.without]
        return list(product(forwards, range(1, MOST_REQUESTS + 1), lengths))

    def run(self, num_steps: int) -> None:
        """Run steps, each with another batch."""
        for _ in range(num_steps):
            if not self._round:
                self._round = self._dice.sample(self.shapes, len(self.shapes))
            self._step(self._round.pop(), self._dice)
        self.num_steps += num_steps

    def settle(self) -> None:
        """Run a few fixed steps, so that the state kept of recent batches is always the same."""
        dice = random.Random(0)  # noqa: S311 - no secrets
        for _ in range(3):
            self._step((Forward.DECODE, 2, self._longest), dice)

    def _step(self, shape: _Shape, dice: random.Random) -> None:
        forward, num_requests, longest = shape
        new = 1 if forward is Forward.DECODE else VERIFIED
        lengths = [dice.randint(new, longest) for _ in range(num_requests)]
        lengths[dice.randrange(num_requests)] = longest
        rows, whole = dice.sample(self._rows, num_requests), self._whole
        requests = [(length - new, new) for length in lengths]
        starts = zip(rows, requests, strict=True)
        slots = torch.cat([self._table_cpu[row, old : old + new] for row, (old, _) in starts])
        batch = batch_of(requests, torch.tensor(rows), slots, uniform=True)
        q, k, v = (tokens[: len(slots)] for tokens in (whole.q, whole.k, whole.v))
        step = replace(whole, batch=batch, q=q, k=k, v=v)  # a forward reads no other fields
        self._rig.supply(step).on(self._rig.device).attend(self.backend)
