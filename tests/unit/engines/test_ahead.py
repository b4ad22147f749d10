"""Answering a query in a fork: where it ends without an answer, and where there are no forks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from backend_caps.capability.gpu import gpus
from backend_caps.engines import ahead
from backend_caps.engines.model import Model
from backend_caps.engines.reading import LaunchQuery
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
