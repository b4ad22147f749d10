"""The same batch gives the same bits, where that is claimed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from backend_caps.kit.check import Case, Check, Effort, Fault, cases_of
from backend_caps.kit.probes.bits import bit_scenarios, other_bits
from backend_caps.kit.rig import Rig, baseline_of, on_host
from backend_caps.kit.scenarios import draw
from backend_caps.kit.scenes import Scene
from backend_caps.kit.subject import Subject
from backend_caps.runtime.attention import AttentionBackend
from backend_caps.simulator import Schedule

_CODE = "determinism"
_ORDERS = (Schedule.parse("eager"), Schedule.parse("lazy"))
_TIMES_AGAIN = 2


def _excuse(subject: Subject) -> str | None:
    return None if subject.claim("deterministic") is True else "it does not claim deterministic"


def _cases(subject: Subject, effort: Effort) -> Iterable[Case]:
    """Take one order a seed, and each forward in it."""
    for seed in effort.seeds:
        order = _ORDERS[seed % len(_ORDERS)]
        scenarios = bit_scenarios(subject, seed)
        yield from cases_of(_CODE, scenarios, replace(effort, seeds=(seed,)), [order])


def _run(rig: Rig, case: Case) -> Iterator[Fault]:
    assert case.scenario is not None, "each case has batches"
    scene = draw(case.scenario, case.seed)
    build: Callable[..., AttentionBackend] = rig.subject.build
    with rig.running(case.schedule):
        there = rig.supply(scene).on(rig.device)
        backend = build(there.pools)
        expected = baseline_of(lambda: _once(there, backend))
        again = [_once(there, backend) for _ in range(_TIMES_AGAIN)]
        elsewhere = rig.eager(scene)
    for who, found in (*(("the same", one) for one in again), ("a new", elsewhere)):
        differs = other_bits(found, expected)
        if differs is not None:
            yield Fault(what=f"the same batch again, in {who} backend: {differs}")
            return


def _once(scene: Scene, backend: AttentionBackend) -> Tensor:
    """Prepare and run a forward, and wait for it: [T, Hq, Dv], host."""
    backend.init_forward_metadata(scene.batch)
    return on_host(scene.forward(backend))


CHECK = Check(
    code=_CODE,
    claims=("deterministic",),
    title="The same batch gives the same bits.",
    proves="A batch that is run several times in one backend, and once in a new one, has outputs "
    "of the same bits, in each forward that is claimed, over short contexts and some of hundreds "
    "of tokens, with device work run as soon as it can be and as late.",
    cannot="What a real device's atomics do, unless it runs there; and another process, machine, "
    "or number of threads.",
    excuse=_excuse,
    cases=_cases,
    run=_run,
    after=("numerics", "inputs-untouched", "batches-apart", "races"),
)
