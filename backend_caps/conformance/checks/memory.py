"""However many steps a backend runs, it holds no more than after the first ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from backend_caps.conformance.kit.check import Case, Check, Effort, Fault, always, cases_of
from backend_caps.conformance.kit.growth import Gauge, Growth, quickly_collected
from backend_caps.conformance.kit.rig import Rig
from backend_caps.conformance.kit.scenarios import Forward, scenarios_of
from backend_caps.conformance.kit.steady import SteadyRun
from backend_caps.conformance.kit.subject import Subject

_FORWARDS = (Forward.DECODE, Forward.DRAFT_EXTEND)
"""The first that is taken names the case; its steps decode and verify."""
_ENOUGH = 1000
"""Steps after which what still grows has no bound that a server would notice in time."""


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
        steady.run(case.num_steps // 2)
        growth = _measured(steady, gauge, case.num_steps // 4)
        # What is kept for the latest few hundred batches grows too, until it is full.
        if growth.is_suspect and steady.num_steps < _ENOUGH:
            growth = _measured(steady, gauge, (_ENOUGH - steady.num_steps) // 2)
        yield from _faults(growth, steady.num_steps, rig.device)


def _measured(steady: SteadyRun, gauge: Gauge, num_steps: int) -> Growth:
    steady.settle()
    first = gauge.read()
    steady.run(num_steps)
    steady.settle()
    middle = gauge.read()
    steady.run(num_steps)
    steady.settle()
    return Growth(first=first, middle=middle, last=gauge.read())


def _faults(growth: Growth, num_steps: int, device: str) -> Iterator[Fault]:
    first, last = growth.first, growth.last
    most = "" if growth.place is None else f", most of it kept by {growth.place}"
    expected = f"by the end of {num_steps} steps{most}; what the first half of them left was enough"
    if growth.of_device:
        unit = "bytes" if device == "cuda" else "blocks"
        yield Fault(
            what=f"device memory grew from {first.device} to {last.device} {unit} {expected}"
        )
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
)
