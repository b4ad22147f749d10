"""Checks of linear attention: outputs and states against the recurrence, token by token.

Shapes: T tokens in a batch, H heads, Dv the values' size, L layers with states, S slots of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import EAGER, cases_of
from backend_caps.kit.checks.replay import no_graphs
from backend_caps.kit.probes.seq_lens import host_waits
from backend_caps.kit.rig import changed_rows, on_host, some
from backend_caps.report.check_catalog import CheckDescription
from backend_caps.simulator import HostSync, OrderPolicy, Race, Schedule, Simulation
from backend_caps_sglang.kit.classes import ADAPTED
from backend_caps_sglang.kit.engine_modules import load_sglang
from backend_caps_sglang.kit.linear_layers import LAYER_IDS, LinearLayers, State
from backend_caps_sglang.kit.linear_runner import StateRunner
from backend_caps_sglang.kit.linear_stories import StateTurn, state_story

_PADDING_SLOT = 0
"""The slot that requests of padding have: a class may write there."""
_FORWARDS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)
_OTHER_CODE = "linear-states-other-kernels"
_CAPTURED = (Forward.DECODE, Forward.VERIFY)
_MOST_FAULTS = 3
_SCHEDULES = (Schedule(OrderPolicy.LAZY), *(Schedule(OrderPolicy.STARVE, own) for own in (1, 2)))
"""Lazily, and with either of an overlapped run's two streams behind all else."""


def keeps_states(subject: Subject) -> bool:
    """Return whether the layers of a class of SGLang's keep states in place of a KV cache."""
    return subject.name in ADAPTED and ADAPTED[subject.name].layers is not None


def _layers(subject: Subject, code: str) -> LinearLayers:
    """Make the layers that a check asks about."""
    adapted = ADAPTED[subject.name]
    make = adapted.other_layers if code == _OTHER_CODE else adapted.layers
    assert make is not None, "a class that has none is excused"
    return make()


def _story(rig: Rig, case: Case) -> Sequence[StateTurn]:
    layers = _layers(rig.subject, case.check)
    return state_story(layers, case.batch_scenario, case.seed)


def _runner(rig: Rig, case: Case, *, overlapped: bool = False) -> StateRunner:
    own = rig.subject.load()
    assert isinstance(own, type), "SGLang's backends are classes"
    build = partial(ADAPTED[rig.subject.name].build, own)
    dtype: torch.dtype = getattr(torch, case.batch_scenario.dtype)
    layers = _layers(rig.subject, case.check)
    return StateRunner(rig, load_sglang(), build, layers, dtype, overlapped=overlapped)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """What a class gave, beside what it has to give."""

    rig: Rig
    scenario: Scenario

    def outputs(self, turn: StateTurn, found: Sequence[Tensor]) -> Iterator[str]:
        """Describe wrong outputs: [T, H, Dv] of each layer, host."""
        for layer, output, expected in zip(LAYER_IDS, found, turn.outputs, strict=True):
            differs = self.rig.difference(output, expected, self.scenario)
            if differs is not None:
                yield f"in layer {layer}, {differs}"

    def states(
        self, slots: Sequence[int], expected: Sequence[Sequence[State]], found: Mapping[str, Tensor]
    ) -> Iterator[str]:
        """Describe wrong states: [L, S, ...] by name, host."""
        for place, layer in enumerate(LAYER_IDS):
            for slot, state in zip(slots, expected[place], strict=True):
                yield from self._state(f"slot {slot} of layer {layer}", place, slot, state, found)

    def drafts(self, turn: StateTurn, found: Mapping[str, Tensor]) -> Iterator[str]:
        """Describe wrong states behind verified tokens: [L, B, VERIFIED, ...] by name, host."""
        for place, layer in enumerate(LAYER_IDS if turn.drafts else ()):
            for request, passed in enumerate(turn.drafts[place]):
                for token, state in enumerate(passed):
                    each = {name: own[:, request] for name, own in found.items()}
                    what = f"token {token} of request {request}, in layer {layer}"
                    yield from self._state(what, place, token, state, each)

    def _state(
        self, what: str, place: int, index: int, state: State, found: Mapping[str, Tensor]
    ) -> Iterator[str]:
        for name, expected in state.items():
            if name in found:
                own = found[name][place, index].double()
                differs = self.rig.difference(own, expected, self.scenario)
                if differs is not None:
                    error = (own - expected).abs().max()
                    yield f"the state ({name}) behind {what} differs by up to {error:.2g}"


def _changed(
    before: Mapping[str, Tensor], now: Mapping[str, Tensor], written: Iterable[int]
) -> Iterator[str]:
    """Describe changed states of slots that a turn has nothing to write to."""
    for name, own in now.items():
        pairs = zip(before[name], own, strict=True)
        changed = {slot for old, new in pairs for slot in changed_rows(old, new)}
        strays = sorted(changed - {*written, _PADDING_SLOT})
        if strays:
            yield f"it wrote to slots {some(strays)} ({name}), which no request of it has"


def _run_states(rig: Rig, case: Case, *, captured: bool = False) -> Iterator[Fault]:
    story, scenario = _story(rig, case), case.batch_scenario
    comparison = _Comparison(rig, scenario)
    with rig.running(case.schedule):
        runner = _runner(rig, case)
        if captured:
            runner.capture(scenario.forward)
        for number, turn in enumerate(story):
            wrong = [*islice(_turn_faults(runner, comparison, turn), _MOST_FAULTS)]
            yield from (Fault(what=f"in turn {number}, {turn.name}: {each}") for each in wrong)
            if wrong:  # later turns begin with wrong states
                return


def _turn_faults(runner: StateRunner, comparison: _Comparison, turn: StateTurn) -> Iterator[str]:
    """Run a turn, and describe what is wrong behind it."""
    before = runner.states()
    found = [on_host(output) for output in runner.run(turn)]
    yield from comparison.outputs(turn, found)
    if turn.drafts:
        yield from comparison.drafts(turn, runner.drafts())
        runner.commit(turn)
    now = runner.states()
    yield from comparison.states(turn.slots, turn.states, now)
    yield from _changed(before, now, turn.slots)


def _run_races(rig: Rig, case: Case) -> Iterator[Fault]:
    """Run a story overlapped, and compare what it gave once all of it is launched."""
    story = _story(rig, case)
    comparison = _Comparison(rig, case.batch_scenario)
    last = {slot: place for place, turn in enumerate(story) for slot in turn.slots}
    with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
        runner = _runner(rig, case, overlapped=True)
        outputs = []
        for turn in story:
            outputs.append(runner.run(turn))
            if turn.drafts:
                runner.commit(turn)
        torch.get_device_module(rig.device).synchronize()
        found = [[on_host(own) for own in each] for each in outputs]
        states = runner.states()
    wrong = _overlapped_faults(comparison, story, found)
    yield from (Fault(what=each) for each in islice(wrong, 1))
    for slot, place in last.items():
        turn = story[place]
        expected = [[own[turn.slots.index(slot)]] for own in turn.states]
        for each in islice(comparison.states([slot], expected, states), 1):
            yield Fault(what=f"behind the whole story, {each}")
    races = () if simulation is None else simulation.races
    yield from islice(_races(races, rig.subject), _MOST_FAULTS)


def _overlapped_faults(
    comparison: _Comparison, story: Sequence[StateTurn], found: Sequence[Sequence[Tensor]]
) -> Iterator[str]:
    for number, (turn, outputs) in enumerate(zip(story, found, strict=True)):
        for each in comparison.outputs(turn, outputs):
            yield f"in turn {number} of an overlapped story, {turn.name}: {each}"


def _races(races: Iterable[Race], subject: Subject) -> Iterator[Fault]:
    for race in {(each.first.site, each.second.site): each for each in races}.values():
        sides = race.first, race.second
        first, second = (
            f"{'the write' if side.is_write else 'the read'} by {side.operator} on stream "
            f"{side.stream} at {Path(side.site.file).name}:{side.site.line}"
            for side in sides
        )
        site = next((side.site for side in sides if subject.owns(side.site.file)), None)
        yield Fault(what=f"nothing orders {first}, and {second}", site=site)


def _run_waits(rig: Rig, case: Case) -> Iterator[Fault]:
    found: list[tuple[str, HostSync, StateTurn]] = []
    # Lazily, so that a loop over `event.query()` waits too.
    with rig.running(Schedule(OrderPolicy.LAZY)) as simulation:
        runner = _runner(rig, case)
        if case.batch_scenario.forward in _CAPTURED and case.seed % 2:
            runner.capture(case.batch_scenario.forward)
        for turn in _story(rig, case):
            runner.watch = partial(_watched, simulation, turn, found)
            runner.run(turn)
            if turn.drafts:
                runner.commit(turn)
    lines: dict[object, Fault] = {}
    # Decodes and verifies first: there a wait ends the overlap of host and device.
    for method, wait, turn in sorted(found, key=lambda each: not each[2].is_uniform):
        where = f"{Path(wait.site.file).name}:{wait.site.line}"
        text = f"{method} made the host wait, by {wait.cause} at {where}, in {turn.name}"
        site = wait.site if rig.subject.owns(wait.site.file) else None
        lines.setdefault((method, wait.site), Fault(what=text, site=site))
    yield from islice(lines.values(), 1)


@contextmanager
def _watched(
    simulation: Simulation | None,
    turn: StateTurn,
    found: list[tuple[str, HostSync, StateTurn]],
    method: str,
) -> Iterator[None]:
    """Add the host waits of a `with` block in which a method runs."""
    with host_waits(simulation) as waits:
        yield
    found += [(method, wait, turn) for wait in waits]


def _cases(
    code: str, subject: Subject, effort: Effort, forwards: Sequence[Forward] = _FORWARDS
) -> Iterator[Case]:
    dtypes = _layers(subject, code).dtypes
    scenarios = [_scenario(forward) for forward in forwards]
    for case in cases_of(code, scenarios, effort):
        dtype = dtypes[case.seed % len(dtypes)]
        yield replace(case, scenario=replace(case.batch_scenario, dtype=dtype))


def _scenario(forward: Forward) -> Scenario:
    return Scenario(forward=forward, head_size=128, num_heads=2, num_kv_heads=2, topk=1)


def _race_cases(code: str, subject: Subject, effort: Effort) -> Iterator[Case]:
    """Make an eager case of each seed for the sanitizer, and one in each other schedule."""
    plain = list(_cases(code, subject, effort, (Forward.DECODE,)))
    yield from plain
    for seed in effort.seeds:
        schedules = (*_SCHEDULES, Schedule(OrderPolicy.RANDOM, seed))
        own = next(case for case in plain if case.seed == seed)
        yield replace(own, schedule=schedules[seed % len(schedules)])


def _excuse(subject: Subject) -> str | None:
    return None if keeps_states(subject) else "its layers keep no states"


def _excuse_others(subject: Subject) -> str | None:
    has_others = keeps_states(subject) and ADAPTED[subject.name].other_layers is not None
    return _excuse(subject) or (None if has_others else "it has no other kernels")


def _check(
    code: str,
    title: str,
    proves: str,
    run: Callable[[Rig, Case], Iterator[Fault]],
    cases: Callable[[str, Subject, Effort], Iterator[Case]] = _cases,
) -> Check:
    about = CheckDescription(
        code=code, claims=[], title=title, proves=proves, cannot="Other sizes, and longer contexts."
    )
    return Check(about=about, excuse=_excuse, cases=partial(cases, code), run=run)


_STATES = _check(
    "linear-states",
    "Outputs and states are those of the recurrence.",
    "Prompts, chunks, mixed batches, decodes and verifies of several layers give the outputs and "
    "the states of the recurrence, token by token in float64, and no other slot changes.",
    _run_states,
)
_GRAPHS = replace(
    _check(
        "linear-states-graphs",
        "Graphs of decodes and verifies give them too.",
        "So do replays, full and padded, with other requests and lengths, behind eager prefills.",
        partial(_run_states, captured=True),
        partial(_cases, forwards=_CAPTURED),
    ),
    unfit=no_graphs,
)
_WAITS = _check(
    "linear-states-waits",
    "Preparation and layers make the host wait for nothing.",
    "No eager turn, and no preparation of a replay, makes the host wait for the device.",
    _run_waits,
    partial(_cases, forwards=_FORWARDS[::-1]),
)
_RACES = _check(
    "linear-states-races",
    "Overlapped turns give what turns one behind the other give.",
    "Batches are copied on a stream of their own, in orders that starve either stream, and the "
    "sanitizer sees no access that nothing orders.",
    _run_races,
    _race_cases,
)
_OTHERS = replace(
    _check(
        _OTHER_CODE,
        "Kernels that a model's configuration chooses give them too.",
        "Prompts, chunks, mixed batches and decodes by the class's other kernels give the outputs "
        "and the states of the recurrence.",
        _run_states,
        partial(_cases, forwards=tuple(own for own in _FORWARDS if own is not Forward.VERIFY)),
    ),
    excuse=_excuse_others,
)
STATE_CHECKS: tuple[Check, ...] = (_STATES, _GRAPHS, _WAITS, _RACES, _OTHERS)
"""What is asked of classes whose layers keep states."""
