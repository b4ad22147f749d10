"""Answering queries in forks: where they end without an answer, and where there are no forks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from backend_caps.capability.gpu import gpus
from backend_caps.engines import ahead
from backend_caps.engines.model import Model
from backend_caps.engines.reading import EngineError, LaunchQuery
from backend_caps.resolution.launch import Launch

_QUERY = LaunchQuery(lines=[()], gpu=gpus()["H100"], num_gpus=1, model=Model(name="m", config={}))


class _Answer:
    """Answers with the process that does, and ends forks where it is to."""

    def __init__(self, *, ends_forks: bool = False) -> None:
        self._process, self._ends_forks = os.getpid(), ends_forks

    def __call__(self, query: LaunchQuery) -> Sequence[Launch]:
        is_fork = os.getpid() != self._process
        if is_fork and self._ends_forks:
            os._exit(1)
        where = "fork" if is_fork else "here"
        return [Launch(engine=where, machine=query.gpu.key, model=query.model.name)]


def _where(answer: ahead.Answer, query: LaunchQuery = _QUERY) -> str:
    [launch] = answer(query)
    return launch.engine


def test_fork_answers_its_query_once() -> None:
    """The query is answered by the fork; another one, or the same again, here."""
    answer = ahead.in_fork(_Answer(), _QUERY)(_Answer())

    assert _where(answer, replace(_QUERY, num_gpus=2)) == "here"
    assert [_where(answer), _where(answer)] == ["fork", "here"]


def test_fork_that_ends_without_an_answer_loses_nothing() -> None:
    """Where the fork is killed, the query is answered when it is asked."""
    assert _where(ahead.in_fork(_Answer(ends_forks=True), _QUERY)(_Answer())) == "here"


def test_query_is_answered_where_there_are_no_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a platform without forks nothing begins beforehand."""
    monkeypatch.setattr(ahead, "get_all_start_methods", lambda: ["spawn"])

    assert _where(ahead.in_fork(_Answer(), _QUERY)(_Answer())) == "here"


def test_each_command_line_is_followed_in_a_fork_of_its_own() -> None:
    """What one changes in its process, no other one finds."""
    seen = ["here"]

    def follow(argv: Sequence[str]) -> tuple[str, int]:
        seen.extend(argv)
        return " ".join(seen), os.getpid()

    found = dict(ahead.in_forks(follow, [["a"], ["b"], ["c"]]))

    assert {at: words for at, (words, _) in found.items()} == {
        0: "here a",
        1: "here b",
        2: "here c",
    }
    assert len({process for _, process in found.values()} - {os.getpid()}) == 3
    assert seen == ["here"]


def test_fork_that_ends_early_is_an_error() -> None:
    """Its command line is named."""

    def follow(_argv: Sequence[str]) -> None:
        os._exit(1)

    with pytest.raises(EngineError, match=r"the process that follows '--tp 2' ends early"):
        dict(ahead.in_forks(follow, [["--tp", "2"]]))
