"""Answers a query that is known beforehand while an engine is read, on another core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from typing import TypeAlias

from backend_caps.engines.reading import LaunchQuery
from backend_caps.resolution.launch import Launch

Answer: TypeAlias = Callable[[LaunchQuery], Sequence[Launch]]
"""Returns what an engine makes of command lines."""


def in_thread(answer: Answer, query: LaunchQuery) -> Answer:
    """Begin to answer a query in a thread, for what waits for another process."""
    executor = ThreadPoolExecutor(1)
    found = executor.submit(answer, query)
    executor.shutdown(wait=False)
    return lambda other: found.result() if other == query else answer(other)


def in_fork(answer: Answer, query: LaunchQuery) -> Answer:
    """Begin to answer a query in a fork of this process, for what computes.

    Where there are no forks, or this one ends without an answer, the query is answered when it is
    asked.
    """
    if "fork" not in get_all_start_methods():
        return answer
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, answer, query), daemon=True)
    process.start()
    sender.close()

    def answered(other: LaunchQuery) -> Sequence[Launch]:
        if other != query or receiver.closed:
            return answer(other)
        try:
            found: Sequence[Launch] = receiver.recv()
        except EOFError:
            return answer(other)
        finally:
            receiver.close()
            process.join()
        return found

    return answered


def _send(sender: Connection, answer: Answer, query: LaunchQuery) -> None:
    sender.send(answer(query))
