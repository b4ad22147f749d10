"""An overlapped speculative loop around a FutureMap, with a worker that makes lengths up.

The schedule stream is held back by the forward's last read of what the scheduler writes, which
here comes before verify, and by nothing else: whatever the relay does not wait for by itself is
not waited for. Requests leave their rows while a step of theirs is in flight, and the next ones
enter through `bootstrap` at once.

Shapes: B requests in the batch, K draft candidates, H hidden features.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from backend_caps.capability.vocabulary import HostSeqLens
from backend_caps.relay import DraftShape, FutureMap, RelayPayload
from backend_caps.relay.host_lengths import MAX_COLUMN_ROWS
from backend_caps.relay.streams import EventLike
from backend_caps.simulator.device import simulate
from tests.races.cases import Case, Finding, findings_after
from tests.races.loop_parts import Batch, Checks, Lines, SpecState

_TOPK, _HIDDEN, _ACCEPT = 2, 4, 3
_VOCAB = 997
_SMALL, _LARGE = 8, MAX_COLUMN_ROWS + 1
_WAYS = (
    (HostSeqLens.EXACT, _SMALL),
    (HostSeqLens.EXACT, _LARGE),
    (HostSeqLens.UPPER_BOUND, _SMALL),
    (HostSeqLens.NONE, _SMALL),
)
"""Modes, and pools of which the column crosses, or rows."""
_DRAFT = DraftShape(topk=_TOPK, hidden_size=_HIDDEN, dtype=torch.float32, accept_tokens=_ACCEPT)


@dataclass(frozen=True, slots=True)
class State:
    """Where a request stands; all that the relay carries follows from it."""

    length: int
    token: int

    def after_step(self) -> State:
        """Do on the host what `_verify` does on the device."""
        candidates = _TOPK * self.token + sum(range(_TOPK))
        hidden, weight = _HIDDEN * (self.length % 16), _TOPK * (self.token % 8)
        mixed = 31 * self.token + 7 * candidates + hidden + 3 * weight + self.length
        return State(self.length + 1 + mixed % _ACCEPT, (17 * mixed + 5) % _VOCAB)


@dataclass(slots=True, eq=False)
class Stay:
    """One request's stay in a row."""

    row: int
    generation: int
    launched: State
    """Where its next step starts."""
    num_steps: int
    """Steps that are left."""


@dataclass(slots=True)
class Step:
    """A step under way; it keeps what other streams read."""

    batch: Batch
    stays: Sequence[Stay]
    expected: Sequence[State]
    """Where it takes each request."""
    results: Tensor
    results_cpu: Tensor
    copied: EventLike


@dataclass(slots=True)
class Setting:
    """How one loop is set up, from its seed."""

    rng: random.Random
    host_seq_lens: HostSeqLens
    pool_size: int
    num_rows: int
    num_steps: int = 8

    @classmethod
    def drawn(cls, seed: int) -> Setting:
        """Draw a loop; four seeds in a row have all ways in which lengths come to the host."""
        rng = random.Random(seed)  # noqa: S311 - a trace, not a secret
        host_seq_lens, pool_size = _WAYS[seed % len(_WAYS)]
        return cls(
            rng=rng, host_seq_lens=host_seq_lens, pool_size=pool_size, num_rows=rng.randint(1, 5)
        )


def run_speculative(case: Case, _folder: Path) -> tuple[Finding, ...]:
    """Run the loop of a case's seed, and list what is wrong."""
    with simulate(case.schedule, check_races=case.checks_races) as simulation:
        loop = SpeculativeLoop(Setting.drawn(case.seed))
        loop.run()
        found = list(loop.checks.findings())
    del loop
    return (*found, *findings_after(simulation))


@dataclass(slots=True)
class _Rows:
    """Who is where."""

    stays: dict[int, Stay] = field(default_factory=dict)
    num_generations: int = 0


class SpeculativeLoop:
    """Launch step n + 1, then process step n."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.lines = Lines()
        self.checks = Checks()
        self._rows = _Rows()
        self._candidates = torch.arange(_TOPK, device=self.lines.streams.device)
        self.lines.streams.synchronize()
        self.relay = FutureMap(
            pool_size=setting.pool_size,
            device=self.lines.streams.device,
            host_seq_lens=setting.host_seq_lens,
            speculative=True,
            draft=_DRAFT,
            streams=self.lines.streams,
        )

    def run(self) -> None:
        """Run all steps."""
        self._enter(range(1, self.setting.num_rows + 1))
        in_flight: Step | None = None
        for _ in range(self.setting.num_steps):
            with self.lines.streams.using(self.lines.on.schedule):
                done, in_flight = in_flight, self._launch()
                left = [] if done is None else self._process(done)
                self._enter(left)
        assert in_flight is not None, "there are steps"
        self._process(in_flight)
        self.lines.streams.synchronize()

    def _enter(self, rows: Sequence[int]) -> None:
        """Put new requests into rows, through the stream of what was prefilled elsewhere."""
        if not rows:
            return
        rng, count = self.setting.rng, len(rows)
        states = [State(rng.randint(1, 40), rng.randrange(_VOCAB)) for _ in rows]
        self._rows.num_generations += 1
        generation = self._rows.num_generations
        for row, state in zip(rows, states, strict=True):
            self._rows.stays[row] = Stay(row, generation, state, rng.randint(1, 5))
        lens = [state.length for state in states]
        with self.lines.streams.using(self.lines.prebuilt):
            index = self.lines.upload(rows)
            seq_lens, tokens = self.lines.upload(lens), self.lines.upload([s.token for s in states])
            payload = self._drafted(seq_lens, tokens)
            forward = self.lines.on.forward
            self.relay.bootstrap(index, seq_lens, payload, forward_stream=forward)
        generations = torch.full((count,), generation)
        self.relay.commit_lengths(torch.tensor(rows), torch.tensor(lens), generations)

    def _launch(self) -> Step:
        stays = list(self._rows.stays.values())
        before = [stay.launched for stay in stays]
        rows = [stay.row for stay in stays]
        index = self.lines.upload(rows)
        batch = Batch(index, torch.tensor(rows), torch.zeros_like(index), spec_info=SpecState())
        self.relay.resolve_seq_lens_cpu(batch)
        self._check_host_lengths(batch, [state.length for state in before])
        forward, schedule = self.lines.on.forward, self.lines.on.schedule
        reads_done = self.lines.streams.event()
        forward.wait_stream(schedule)
        with self.lines.streams.using(forward):
            self.relay.resolve_future(batch)
            reads_done.record(forward)
            seq_lens, tokens = _verify(batch)
            self.relay.publish(batch.req_pool_indices, seq_lens)
            self.relay.stash(batch.req_pool_indices, self._drafted(seq_lens, tokens))
            results = torch.stack((seq_lens, tokens))
        results_cpu, copied = self.lines.to_host(results)
        schedule.wait_event(reads_done)
        expected = [state.after_step() for state in before]
        for stay, state in zip(stays, expected, strict=True):
            stay.launched = state
            stay.num_steps -= 1
        return Step(batch, stays, expected, results, results_cpu, copied)

    def _drafted(self, seq_lens: Tensor, tokens: Tensor) -> RelayPayload:
        """Make up what a draft worker hands to the next step.

        seq_lens  [B] int64, device
        tokens    [B] int64, device
        """
        size = tokens.shape[0]
        return RelayPayload(
            tokens,
            topk_p=(tokens % 8).float()[:, None].expand(size, _TOPK),
            topk_index=tokens[:, None] + self._candidates,
            hidden_states=(seq_lens % 16).float()[:, None].expand(size, _HIDDEN),
        )

    def _process(self, step: Step) -> list[int]:
        """Take in a step's results; return the rows of the requests that they end."""
        step.copied.synchronize()
        lens, tokens = step.results_cpu.tolist()
        self.checks.equal("lengths", lens, [state.length for state in step.expected])
        self.checks.equal("tokens", tokens, [state.token for state in step.expected])
        rows_cpu = step.batch.req_pool_indices_cpu
        generations = torch.tensor([stay.generation for stay in step.stays])
        self.relay.commit_lengths(rows_cpu, torch.tensor(lens), generations)
        return [s.row for s in step.stays if s.num_steps <= 0 and self._rows.stays[s.row] is s]

    def _check_host_lengths(self, batch: Batch, lengths: Sequence[int]) -> None:
        match self.setting.host_seq_lens:
            case HostSeqLens.EXACT:
                assert batch.seq_lens_cpu is not None, "EXACT sets the mirror"
                self.checks.hold(batch.seq_lens_cpu, lengths)
            case HostSeqLens.UPPER_BOUND:
                assert batch.seq_lens_cpu_upper_bound is not None, "a bound is set"
                bounds = batch.seq_lens_cpu_upper_bound.tolist()
                low = [min(bound, own) for bound, own in zip(bounds, lengths, strict=True)]
                self.checks.equal("bounds, where they are low,", low, lengths)
            case HostSeqLens.NONE:
                assert batch.seq_lens_cpu is None, "NONE sets no mirror"


def _verify(batch: Batch) -> tuple[Tensor, Tensor]:
    """Make up how much of each draft is accepted, from all that the relay carries.

    returns  [B] int64, device  lengths
             [B] int64, device  tokens
    """
    draft = batch.spec_info
    assert draft is not None, "a speculative step has a draft's state"
    tokens, weights, hidden = draft.bonus_tokens, draft.topk_p, draft.hidden_states
    assert tokens is not None, "resolved"
    assert draft.topk_index is not None, "resolved"
    assert weights is not None, "resolved"
    assert hidden is not None, "resolved"
    carried = 7 * draft.topk_index.sum(1) + hidden.sum(1).long() + 3 * weights.sum(1).long()
    mixed = 31 * tokens + carried + batch.seq_lens
    return batch.seq_lens + 1 + mixed % _ACCEPT, (17 * mixed + 5) % _VOCAB
