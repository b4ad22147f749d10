"""Requests that come and go while others run."""

from __future__ import annotations

import random
from collections.abc import Sequence

from backend_caps.runtime import Engine, FinishReason, Request
from tests.runtime.engines import submit
from tests.runtime.oracle import Job

_MAX_NEW_A_STEP = 6
_ABORTS_A_STEP = 0.25


def run_with_churn(engine: Engine, jobs: Sequence[Job], seed: int) -> list[Request]:
    """Submit a few jobs before each step, and sometimes give one up, until all have ended."""
    draw = random.Random(seed)  # noqa: S311 - a schedule, not a secret
    left = list(jobs)
    requests: list[Request] = []
    while left or engine.scheduler.has_work:
        count = draw.randint(0, _MAX_NEW_A_STEP)
        requests += [submit(engine, job) for job in left[:count]]
        left = left[count:]
        alive = [request for request in requests if not request.is_finished]
        if alive and draw.random() < _ABORTS_A_STEP:
            engine.abort(draw.choice(alive))
        engine.step()
    return requests


def is_aborted(request: Request) -> bool:
    """Tell whether its caller gave a request up."""
    return request.finish_reason is FinishReason.ABORT


def up_to_aborts(requests: Sequence[Request], tokens: Sequence[list[int]]) -> list[list[int]]:
    """Say what each request should have: all its tokens, or as many as it got until its abort."""
    return [
        right[: len(own.output)] if is_aborted(own) else right
        for own, right in zip(requests, tokens, strict=True)
    ]


def num_retractions(requests: Sequence[Request]) -> int:
    """Count how often requests were taken out of the KV cache."""
    return sum(request.num_retractions for request in requests)
