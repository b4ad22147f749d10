"""Answers queries on other cores: one that is known beforehand, and several at once."""

from __future__ import annotations

import gc
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeAlias, TypeVar

from backend_caps.engines.reading import EngineError, LaunchQuery
from backend_caps.resolution.launch import Launch

_Result = TypeVar("_Result")
Answer: TypeAlias = Callable[[LaunchQuery], Sequence[Launch]]
"""Returns what an engine makes of command lines."""


def in_forks(
    follow: Callable[[Sequence[str]], _Result], lines: Sequence[Sequence[str]]
) -> Iterator[tuple[int, _Result]]:
    """Follow each command line in a fork of its own, as many at once as there are cores.

    A fork has at once what this process has parsed and interpreted when it is made, and changes
    nothing of it.

    Yields:
        The place of a command line, and what comes of it, as each fork ends.

    Raises:
        EngineError: a fork ends without an answer.
    """
    context = get_context("fork")
    waiting = deque(enumerate(lines))
    running: dict[object, tuple[int, Connection, BaseProcess]] = {}
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            at, argv = waiting.popleft()
            receiver, sender = context.Pipe(duplex=False)
            begun = context.Process(target=_follow, args=(sender, follow, argv), daemon=True)
            begun.start()
            sender.close()
            running[receiver] = at, receiver, begun
        for ready in wait([receiver for _, receiver, _ in running.values()]):
            at, receiver, process = running.pop(ready)
            with receiver:
                try:
                    result: _Result = receiver.recv()
                except EOFError:
                    words = f"the process that follows {' '.join(lines[at])!r} ends early"
                    raise EngineError("launch-not-followed", words) from None
            process.join()
            yield at, result


def _follow(
    sender: Connection, follow: Callable[[Sequence[str]], _Result], argv: Sequence[str]
) -> None:
    gc.disable()  # it would touch, and so copy, all that the process has
    sender.send(follow(argv))


def in_thread(ahead: Answer, query: LaunchQuery) -> Callable[[Answer], Answer]:
    """Begin to answer a query in a thread, for what waits for another process.

    Arguments and result are those of `in_fork`; the answer is kept.
    """
    executor = ThreadPoolExecutor(1)
    found = executor.submit(ahead, query)
    executor.shutdown(wait=False)
    return lambda answer: lambda other: found.result() if other == query else answer(other)


def in_fork(ahead: Answer, query: LaunchQuery) -> Callable[[Answer], Answer]:
    """Begin to answer a query in a fork of this process, for what computes.

    Args:
        ahead: answers it in the fork.
        query: what will be asked.

    Returns:
        A function that takes what answers queries in this process, and returns what takes the
        answer of the fork for its query, once. Where there are no forks, or this one ends without
        an answer, the query is answered in this process.
    """
    if "fork" not in get_all_start_methods():
        return lambda answer: answer
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, ahead, query), daemon=True)
    process.start()
    sender.close()

    def answered(answer: Answer, other: LaunchQuery) -> Sequence[Launch]:
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

    return lambda answer: partial(answered, answer)


def _send(sender: Connection, ahead: Answer, query: LaunchQuery) -> None:
    with suppress(EngineError):  # reading the engine raises it too
        sender.send(ahead(query))
