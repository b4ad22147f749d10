"""A fork of the checking process, which takes checks from the same queue."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection

_END = -1
"""What stands in the queue behind the last piece of work, once for each process."""


class SecondProcess:
    """Share pieces of work with a fork: each process takes the next one when it is free.

    What the fork took and did not bring, as native code ended it, is the caller's again. It ends
    with this process. The device has to be the CPU: a CUDA context does not survive a fork.

    Args:
        numbers: the pieces, in the order in which they are taken.
        run: runs a piece, by its number, and returns its pickled result.
        report: returns what the fork says behind its last piece, pickled.
    """

    def __init__(
        self, numbers: Sequence[int], run: Callable[[int], bytes], report: Callable[[], bytes]
    ) -> None:
        context = get_context("fork")
        self._queue = context.SimpleQueue()
        for number in (*numbers, _END, _END):
            self._queue.put(number)
        self._run, self._report = run, report
        self._pipe, fork_end = context.Pipe(duplex=False)
        self._process = context.Process(target=self._serve, args=(fork_end,), daemon=True)
        with warnings.catch_warnings():
            # Of forks beside threads. The only other thread draws the progress, which the fork
            # leaves alone.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        fork_end.close()
        self.report: bytes | None = None
        """What the fork reported; None before `brought`, and where it did not get there."""

    def numbers(self) -> Iterator[int]:
        """Take pieces of work for this process, until none is left."""
        yield from iter(self._queue.get, _END)

    def brought(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and result of each piece that the fork ran; wait until it ends."""
        try:
            while True:
                number, result = self._pipe.recv()
                if number == _END:
                    self.report = result
                else:
                    yield number, result
        except EOFError:
            self._process.join()

    def _serve(self, pipe: Connection) -> None:
        for number in self.numbers():
            pipe.send((number, self._run(number)))
        pipe.send((_END, self._report()))


def ends_with(parent: int) -> None:
    """End this process if its parent has ended."""
    if os.getppid() != parent:
        os._exit(1)
