"""However many steps a backend runs, it holds no more than after the first ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from backend_caps.kit.check import Case, Check, Effort, Fault, always, cases_of
from backend_caps.kit.probes.growth import Gauge, Growth, Held, quickly_collected
from backend_caps.kit.rig import Rig
from backend_caps.kit.scenarios import Forward, scenarios_of
from backend_caps.kit.subject import Subject
from backend_caps.kit.workloads.long_run import SteadyRun

_FORWARDS = (Forward.DECODE, Forward.DRAFT_EXTEND)
"""The first that is taken names the case; its steps decode and verify."""
_ENOUGH = 1000
"""Steps by whose half all is full that has a bound."""
_FEW, _MANY = 2, 8
"""Parts of the second half, each of which has to leave more: few raise a suspicion, many show it,
as what is kept of changing batches is now more and now less."""


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    few = replace(effort, seeds=effort.seeds[:1])
    scenarios = islice(scenarios_of(subject, _FORWARDS), 1)
    return [
        replace(case, num_steps=effort.num_steps) for case in cases_of("memory", scenarios, few)
    ]


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    with quickly_collected(), rig.running(case.schedule) as simulation:
        steady = SteadyRun(rig, case.scenario, case.seed)
        gauge = Gauge(rig.subject, steady.backend, simulation, rig.device)
        num_steps = case.num_steps
        if num_steps < _ENOUGH and _grows(_measured(steady, gauge, num_steps, _FEW)):
            # What is kept for the latest batches grows at first, too.
            num_steps = _ENOUGH
        if num_steps < _ENOUGH:
            return
        growth = _measured(steady, gauge, num_steps, _MANY)
    yield from _faults(growth, num_steps, rig.device)


def _grows(growth: Growth) -> bool:
    return bool(growth.of_device or growth.of_host)


def _measured(steady: SteadyRun, gauge: Gauge, num_steps: int, num_parts: int) -> Growth:
    """Run so many steps in all, and measure several times in the second half."""
    steady.run(max(0, num_steps // 2 - steady.num_steps))
    moments = [_moment(steady, gauge)]
    for _ in range(num_parts):
        steady.run(num_steps // 2 // num_parts)
        moments.append(_moment(steady, gauge))
    return Growth(moments)


def _moment(steady: SteadyRun, gauge: Gauge) -> Held:
    steady.settle()
    return gauge.read()


def _faults(growth: Growth, num_steps: int, device: str) -> Iterator[Fault]:
    first, last = growth.moments[0], growth.moments[-1]
    most = "" if growth.place is None else f", most of it kept by {growth.place}"
    expected = f"by the end of {num_steps} steps{most}; what the first half of them left was enough"
    if growth.of_device:
        unit = "bytes" if device == "cuda" else "blocks"
        what = f"device memory grew from {first.device} to {last.device} {unit} {expected}"
        yield Fault(what=what)
    elif growth.of_host:
        held = first.host.total(), last.host.total()
        yield Fault(what=f"host memory grew from {held[0]} to {held[1]} bytes {expected}")


CHECK = Check(
    code="memory",
    claims=(),
    title="Nothing grows with the number of steps.",
    proves="Over a long run of decode and verify steps, of batches of changing sizes, rows and "
    "lengths, neither the device's memory nor what the backend's own names lead to on the host "
    "grows steadily after the first half.",
    cannot="What grows only with graphs or prompts, what other libraries keep on the host, and a "
    "store whose bound is above the number of steps, which looks like growth.",
    excuse=always,
    cases=_cases,
    run=_run,
    after=("mirror-absent", "mirror-bound"),
)
