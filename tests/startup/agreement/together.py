"""Ranks that are threads of one process, in as great a number as is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import TypeVar

from backend_caps import Plan
from backend_caps.startup.agreement import Statement, agree_over, exchange

_PATIENCE_S = 120.0
_BYTES_OF_AN_INTEGER = 8
_T = TypeVar("_T")


@dataclass(kw_only=True)
class Wire:
    """What carries the rounds of all ranks, and counts what one of them receives."""

    size: int
    rounds: list[str] = field(default_factory=list)
    """The rounds that there were, by name."""
    num_bytes: int = 0
    """What each rank received in all of them."""

    def __post_init__(self) -> None:
        self._barrier = Barrier(self.size, self._turn, _PATIENCE_S)
        self._said: list[object] = [None] * self.size
        self._heard: list[object] = []

    def exchanged(self, rank: int, said: object) -> list[object]:
        """Put down what a rank says, and return what all say: one list for all of them."""
        self._said[rank] = said
        self._barrier.wait()
        return self._heard

    def _turn(self) -> None:
        """End a round, while every rank waits."""
        self._heard, self._said = self._said, [None] * self.size


@dataclass(frozen=True, kw_only=True)
class OnWire:
    """One rank's channel."""

    wire: Wire
    rank: int

    @property
    def ranks(self) -> range:
        """Their numbers in the job: all of it is here."""
        return range(self.wire.size)

    def largest(self, values: Sequence[int], round_name: str) -> list[int]:
        """Return the largest of all ranks' values."""
        heard = self._rows(values, round_name, _BYTES_OF_AN_INTEGER * len(values))
        return [max(column) for column in zip(*heard, strict=True)]

    def barrier(self, round_name: str) -> None:
        """Wait until every rank has called this round."""
        self._rows([], round_name, 0)

    def gathered(self, values: Sequence[int], round_name: str) -> list[list[int]]:
        """Return every rank's values."""
        num_bytes = _BYTES_OF_AN_INTEGER * len(values) * self.wire.size
        return self._rows(values, round_name, num_bytes)

    def broadcast(self, rank: int, payload: bytes, num_bytes: int, round_name: str) -> bytes:
        """Return the payload of one rank."""
        self._count(round_name, num_bytes)
        received = self.wire.exchanged(self.rank, payload)[rank]
        assert isinstance(received, bytes)
        assert len(received) == num_bytes
        return received

    def _rows(self, values: Sequence[int], round_name: str, num_bytes: int) -> list[list[int]]:
        self._count(round_name, num_bytes)
        rows = []
        for said in self.wire.exchanged(self.rank, [*values]):
            assert isinstance(said, list)
            rows.append(said)
        return rows

    def _count(self, round_name: str, num_bytes: int) -> None:
        if self.rank == 0:
            self.wire.rounds.append(round_name)
            self.wire.num_bytes += num_bytes


def agree_together(ranks: Sequence[tuple[Plan, Statement]]) -> tuple[Wire, list[Plan | Exception]]:
    """Let ranks agree at the same time, and return what each came to."""

    def agree(rank: int, channel: OnWire) -> Plan | Exception:
        plan, statement = ranks[rank]
        try:
            return agree_over(channel, plan, statement)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            return error

    return _together(len(ranks), agree)


def hear_together(ranks: Sequence[tuple[Plan, Statement]]) -> tuple[Wire, list[list[Statement]]]:
    """Let ranks hear one another at the same time, and return what each heard."""

    def hear(rank: int, channel: OnWire) -> list[Statement]:
        plan, statement = ranks[rank]
        return exchange(channel, statement, plan)

    return _together(len(ranks), hear)


def _together(size: int, work: Callable[[int, OnWire], _T]) -> tuple[Wire, list[_T]]:
    wire = Wire(size=size)
    with ThreadPoolExecutor(size) as pool:
        return wire, [*pool.map(lambda rank: work(rank, OnWire(wire=wire, rank=rank)), range(size))]
