"""Answers queries on other cores: one that is known beforehand, and several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from typing import TypeAlias

from backend_caps.engines.reading import EngineError, LaunchQuery
from backend_caps.resolution.launch import Launch

Answer: TypeAlias = Callable[[LaunchQuery], Sequence[Launch]]
"""Returns what an engine makes of command lines."""


_following: Callable[[Sequence[str]], Launch]
"""In a process of a pool, what it does."""


def on_all_cores(
    follow: Callable[[Sequence[str]], Launch], lines: Sequence[Sequence[str]]
) -> list[Launch]:
    """Follow several command lines, each in a process of a pool."""
    first, *rest = lines
    found = [follow(first)]  # it parses what the others need too
    if not rest:
        return found
    # A fork has the parsed source at once, which pickling would copy.
    with get_context("fork").Pool(initializer=_begin, initargs=(follow,)) as pool:
        found += pool.imap(_follow, rest)
        pool.close()
        pool.join()
    return found


def _begin(follow: Callable[[Sequence[str]], Launch]) -> None:
    global _following  # noqa: PLW0603 - a process of the pool takes no other argument
    _following = follow


def _follow(argv: Sequence[str]) -> Launch:
    return _following(argv)


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
