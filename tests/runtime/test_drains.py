"""Whatever comes, goes and fits barely: every request ends, and rightly."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_caps.runtime import Engine, EngineOptions, Request
from tests.property.strategies import law
from tests.runtime.churn import up_to_aborts
from tests.runtime.engines import LOOPS, leaks, make_engine, submit
from tests.runtime.oracle import Oracle

pytestmark = pytest.mark.no_cover  # run by other tests too, and twice as fast untraced

# Prompts of 1 to 40 tokens; two of the longest, which need up to 64, do not fit together.
_JOBS = range(40)
_ENOUGH_STEPS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests, when each comes, and when some are given up."""

    arrivals: list[tuple[int, int]]
    """(step, number of the job)."""
    aborts: dict[int, int]
    """By step, the place of the request that is given up then, where it has come."""
    num_tokens: int
    """What the KV cache holds."""
    num_rows: int
    chunk: int | None
    page_size: int
    is_mixed: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        """Say the workload's flags."""
        mixed = ("--enable-mixed-chunk",) if self.is_mixed else ()
        return (*mixed, "--page-size", str(self.page_size))

    @property
    def options(self) -> EngineOptions:
        """Say the workload's options."""
        return EngineOptions(
            max_total_tokens=self.num_tokens,
            max_running_requests=self.num_rows,
            chunked_prefill_size=self.chunk,
        )


_WORKLOADS = st.builds(
    Workload,
    arrivals=st.lists(
        st.tuples(st.integers(0, 8), st.sampled_from(_JOBS)), min_size=2, max_size=9
    ).map(sorted),
    aborts=st.dictionaries(st.integers(0, 40), st.integers(0, 8), max_size=4),
    num_tokens=st.sampled_from([64, 80]),
    num_rows=st.integers(1, 6),
    chunk=st.sampled_from([4, 7, 16, 24, None]),
    page_size=st.sampled_from([1, 4, 16]),
    is_mixed=st.booleans(),
)


def _run(engine: Engine, oracle: Oracle, workload: Workload) -> list[Request]:
    """Run a workload to its end, which has to come."""
    requests: list[Request] = []
    last = workload.arrivals[-1][0]
    for step in range(_ENOUGH_STEPS):
        if step > last and not engine.scheduler.has_work:
            return requests
        requests += [
            submit(engine, oracle.jobs[job]) for at, job in workload.arrivals if at == step
        ]
        place = workload.aborts.get(step)
        if place is not None and place < len(requests):
            engine.abort(requests[place])
        engine.step()
    pytest.fail(f"after {_ENOUGH_STEPS} steps there is work left")


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
@given(workload=_WORKLOADS)
@settings(law, max_examples=40)
def test_every_workload_drains(oracle: Oracle, loop: tuple[str, ...], workload: Workload) -> None:
    """In both loops every request ends with its tokens, and rows and pages are free again."""
    engine = make_engine(oracle.folder, *loop, *workload.arguments, options=workload.options)

    requests = _run(engine, oracle, workload)

    tokens = [oracle.tokens[job] for _, job in workload.arrivals]
    assert all(request.is_finished for request in requests)
    assert [request.output for request in requests] == up_to_aborts(requests, tokens)
    assert leaks(engine) == (0, 0)
