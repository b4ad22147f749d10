"""Ranks that are processes, over gloo: what each does, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from torch import distributed as dist

from tests.machine import free_port

_PATIENCE_S = 60.0
"""How long a test waits for a rank: what takes longer hangs."""
_FORKING = get_context("forkserver")
_FORKING.set_forkserver_preload(["backend_caps.startup.configure", "tests.startup.agreement.made"])

Work = Callable[[int], object]
"""What a rank does, by its number in the group of all; what it returns is pickled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What came of one rank."""

    value: object = None
    error: BaseException | None = None
    seconds: float = 0.0
    """How long its work took."""
    ended: bool = True
    """Whether it reported anything: a process that is killed does not."""

    @property
    def text(self) -> str:
        """What its error says."""
        return str(self.error)


def run_ranks(size: int, work: Work, *, silent: frozenset[int] = frozenset()) -> dict[int, Came]:
    """Run work on each rank of a new job, and return what came of it, by rank.

    Args:
        size: the number of ranks.
        work: what each does.
        silent: the ranks that are not waited for, and of which nothing comes.

    Raises:
        AssertionError: a rank hangs.
    """
    port = free_port()
    told: dict[Connection, int] = {}
    processes: list[BaseProcess] = []
    for rank in range(size):
        ours, theirs = _FORKING.Pipe(duplex=False)
        process: BaseProcess = _FORKING.Process(
            target=_run, args=(rank, size, port, work, theirs), daemon=True
        )
        process.start()
        theirs.close()
        if rank not in silent:
            told[ours] = rank
        processes.append(process)
    came = _heard(told)
    hanging = [rank for rank in told.values() if rank not in came]
    for process in processes:
        process.kill()
        process.join()
    assert not hanging, f"ranks {hanging} hang"
    return came


def _heard(told: Mapping[Connection, int]) -> dict[int, Came]:
    came: dict[int, Came] = {}
    until = time.monotonic() + _PATIENCE_S
    waiting = dict(told)
    while waiting and time.monotonic() < until:
        for ready in wait([*waiting], timeout=0.5):
            assert isinstance(ready, Connection)
            try:
                came[waiting[ready]] = ready.recv()
            except EOFError:
                came[waiting[ready]] = Came(ended=False)
            del waiting[ready]
    return came


def _run(rank: int, size: int, port: int, work: Work, told: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
    )
    dist.barrier()
    started = time.monotonic()
    try:
        came = Came(value=work(rank), seconds=time.monotonic() - started)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
        came = Came(error=error, seconds=time.monotonic() - started)
    told.send(came)
    time.sleep(_PATIENCE_S)  # the store goes with rank 0
