"""An overlapped plain loop around a FutureMap, with prompts and decode rows in one step.

Each batch is held by its step alone and, as in the speculative loop, the schedule stream is behind
the forward's last read of what the scheduler writes, and behind nothing else. So what the relay
takes out of a batch is freed while the forward may still want it.

Shapes: T prompt tokens, R decode rows, B requests in all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import FutureMap, RelayPayload, require_input_ids
from backend_caps.relay.streams import EventLike
from backend_caps.simulator.device import simulate
from tests.races.cases import Case, Finding, findings_after
from tests.races.loop_parts import Batch, Checks, Lines

_VOCAB = 997
_POOL_SIZE = 8
_NUM_STEPS = 8


def _after(token: int, row: int) -> int:
    """Do on the host what the forward does on the device."""
    return (31 * token + row + 7) % _VOCAB


@dataclass(slots=True)
class Step:
    """A step under way; it keeps what other streams read."""

    batch: Batch
    expected: Sequence[int]
    tokens: Tensor
    tokens_cpu: Tensor
    copied: EventLike


def run_mixed(case: Case, _folder: Path) -> tuple[Finding, ...]:
    """Run the loop of a case's seed, and list what is wrong."""
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        loop = MixedLoop(case.seed)
        loop.run()
        found = list(loop.checks.findings())
    del loop
    return (*found, *findings_after(simulation))


class MixedLoop:
    """Launch step n + 1, then process step n."""

    def __init__(self, seed: int) -> None:
        self.lines = Lines()
        self.checks = Checks()
        self._rng = random.Random(seed)  # noqa: S311 - a trace, not a secret
        self._tokens: dict[int, int] = {}
        """The last token of each row that decodes."""
        self.relay = FutureMap(
            pool_size=_POOL_SIZE,
            device=self.lines.streams.device,
            host_seq_lens=HostSeqLens.NONE,
            speculative=False,
            streams=self.lines.streams,
        )

    def run(self) -> None:
        """Run all steps."""
        in_flight: Step | None = None
        for _ in range(_NUM_STEPS):
            with self.lines.streams.using(self.lines.on.schedule):
                step = self._launch()
            if in_flight is not None:
                self._process(in_flight)
            in_flight = step
        assert in_flight is not None, "there are steps"
        self._process(in_flight)
        self.lines.streams.synchronize()

    def _launch(self) -> Step:
        """Give some rows prompts, and let the others decode."""
        free = [row for row in range(1, _POOL_SIZE) if row not in self._tokens]
        count = self._rng.randint(0 if self._tokens else 1, min(2, len(free)))
        entering = self._rng.sample(free, count)
        prompts = [[self._rng.randrange(_VOCAB) for _ in range(2)] for _ in entering]
        running = list(self._tokens)
        rows = [*entering, *running]
        index = self.lines.upload(rows)
        batch = Batch(index, torch.tensor(rows), torch.zeros_like(index))
        if prompts:
            batch.prefill_input_ids_cpu = self.lines.pin([t for own in prompts for t in own])
            batch.mix_running_indices = self.lines.upload(running) if running else None
        last = [*(own[-1] for own in prompts), *self._tokens.values()]
        expected = [_after(token, row) for token, row in zip(last, rows, strict=True)]
        step = self._forward(batch, len(prompts), expected)
        self._tokens = dict(zip(rows, expected, strict=True))
        for row in rows:
            if self._rng.random() < 0.2:
                del self._tokens[row]
        return step

    def _forward(self, batch: Batch, num_prompts: int, expected: Sequence[int]) -> Step:
        self.relay.set_input_ids_sentinel(batch)
        on = self.lines.on
        reads_done = self.lines.streams.event()
        on.forward.wait_stream(on.schedule)
        with self.lines.streams.using(on.forward):
            self.relay.resolve_future(batch)
            reads_done.record(on.forward)
            input_ids = require_input_ids(batch)
            # The second token of each prompt, and the only one of each decode row.
            ends = input_ids[1 : 2 * num_prompts : 2]
            last = torch.cat((ends, input_ids[2 * num_prompts :]))
            tokens = (31 * last + batch.req_pool_indices + 7) % _VOCAB
            self.relay.stash(batch.req_pool_indices, RelayPayload(tokens))
        tokens_cpu, copied = self.lines.to_host(tokens)
        on.schedule.wait_event(reads_done)
        return Step(batch, expected, tokens, tokens_cpu, copied)

    def _process(self, step: Step) -> None:
        step.copied.synchronize()
        self.checks.equal("tokens", step.tokens_cpu.tolist(), step.expected)
