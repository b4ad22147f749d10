"""Checks of linear attention: outputs and states against the recurrence, token by token.

Shapes: T tokens in a batch, H heads, Dv the values' size, L layers with states, S slots of states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from backend_caps.kit import Case, Check, Effort, Fault, Forward, Rig, Scenario, Subject
from backend_caps.kit.check import EAGER, cases_of
from backend_caps.kit.checks.replay import no_graphs
from backend_caps.kit.probes.seq_lens import host_waits
from backend_caps.kit.rig import changed_rows, on_host, some
from backend_caps.kit.states.recurrences import LAYER_IDS, Recurrence, State
from backend_caps.kit.states.stories import StateTurn, state_story
from backend_caps.report.check_catalog import CheckDescription
from backend_caps.simulator import HostSync, OrderPolicy, Race, Schedule, Simulation

OTHER_KERNELS = "linear-states-other-kernels"
"""The check of kernels that a model's configuration chooses."""
HOST_WAITS = "linear-states-waits"
"""The check of what makes the host wait."""
SHORT_PROMPTS = "linear-states-short-prompts"
"""The check of new requests that bring one token."""
_PADDING_SLOT = 0
"""The slot that requests of padding have: a class may write there."""
_FORWARDS = (Forward.PREFILL, Forward.CHUNK, Forward.MIXED, Forward.DECODE, Forward.VERIFY)
_CAPTURED = (Forward.DECODE, Forward.VERIFY)
_MOST_FAULTS = 3
_SCHEDULES = (Schedule(OrderPolicy.LAZY), *(Schedule(OrderPolicy.STARVE, own) for own in (1, 2)))
"""Lazily, and with either of an overlapped run's two streams behind all else."""


class StateRunner(Protocol):
    """Runs turns in one backend of an engine's, within `Rig.running`."""

    watch: Callable[[str], AbstractContextManager[object]]
    """Is entered around each call of the class, by the method's name."""

    def capture(self, forward: Forward) -> None:
        """Capture a graph of a forward of the most requests."""

    def run(self, turn: StateTurn) -> Sequence[Tensor]:
        """Run a turn, in its graph where one was captured: [T, H, Dv], device, of each layer."""

    def commit(self, turn: StateTurn) -> None:
        """Keep the states behind what was accepted of a verify, as the engine does."""

    def states(self) -> Mapping[str, Tensor]:
        """Copy all states to the host: [L, S, ...] by name."""

    def drafts(self) -> Mapping[str, Tensor]:
        """Copy the states behind verified tokens to the host: [L, B, VERIFIED, ...] by name."""


class MakeRunner(Protocol):
    """Makes the runner of a case."""

    def __call__(self, rig: Rig, case: Case, *, overlapped: bool = False) -> StateRunner:
        """Make one; overlapped, schedule and forward have streams of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAdapter:
    """What an engine's adapter brings to the checks of states.

    A class may have layers of their own for `OTHER_KERNELS`.
    """

    excuse: Callable[[Subject, str], str | None]
    """Returns why a check does not apply to a class, by the check's code; None: it applies."""
    dtypes: Callable[[Subject, str], Sequence[str]]
    """Lists the dtypes of what tokens bring, for a check's code."""
    recurrence: Callable[[Subject, Case], Recurrence]
    """Makes what the layers of a class compute, for a case."""
    runner: MakeRunner
    """Makes the runner of a case."""
    forwards: Callable[[Subject], Sequence[Forward]] = lambda _subject: _FORWARDS
    """Lists the forwards that a class is asked to run."""
    captured: Callable[[Subject], Sequence[Forward]] = lambda _subject: _CAPTURED
    """Lists the forwards of which the engine captures graphs."""

    def story(self, rig: Rig, case: Case) -> Sequence[StateTurn]:
        """Draw the story of a case."""
        recurrence = self.recurrence(rig.subject, case)
        return state_story(recurrence, case.batch_scenario, case.seed)


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


def _run_states(
    adapter: StateAdapter, rig: Rig, case: Case, *, captured: bool = False
) -> Iterator[Fault]:
    story, scenario = adapter.story(rig, case), case.batch_scenario
    comparison = _Comparison(rig, scenario)
    with rig.running(case.schedule):
        runner = adapter.runner(rig, case)
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


def _run_races(adapter: StateAdapter, rig: Rig, case: Case) -> Iterator[Fault]:
    """Run a story overlapped, and compare what it gave once all of it is launched."""
    story = adapter.story(rig, case)
    comparison = _Comparison(rig, case.batch_scenario)
    last = {slot: place for place, turn in enumerate(story) for slot in turn.slots}
    with rig.running(case.schedule, check_races=case.schedule == EAGER) as simulation:
        runner = adapter.runner(rig, case, overlapped=True)
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


def _run_waits(adapter: StateAdapter, rig: Rig, case: Case) -> Iterator[Fault]:
    found: list[tuple[str, HostSync, StateTurn]] = []
    # Lazily, so that a loop over `event.query()` waits too.
    with rig.running(Schedule(OrderPolicy.LAZY)) as simulation:
        runner = adapter.runner(rig, case)
        if case.batch_scenario.forward in adapter.captured(rig.subject) and case.seed % 2:
            runner.capture(case.batch_scenario.forward)
        for turn in adapter.story(rig, case):
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
    adapter: StateAdapter, code: str, subject: Subject, effort: Effort, forwards: Sequence[Forward]
) -> Iterator[Case]:
    dtypes = adapter.dtypes(subject, code)
    asked = adapter.forwards(subject)
    scenarios = [_scenario(forward) for forward in forwards if forward in asked]
    for case in cases_of(code, scenarios, effort):
        dtype = dtypes[case.seed % len(dtypes)]
        yield replace(case, scenario=replace(case.batch_scenario, dtype=dtype))


def _scenario(forward: Forward) -> Scenario:
    return Scenario(forward=forward, head_size=128, num_heads=2, num_kv_heads=2, topk=1)


def _graph_cases(
    adapter: StateAdapter, code: str, subject: Subject, effort: Effort
) -> Iterator[Case]:
    return _cases(adapter, code, subject, effort, adapter.captured(subject))


def _race_cases(
    adapter: StateAdapter, code: str, subject: Subject, effort: Effort
) -> Iterator[Case]:
    """Make an eager case of each seed for the sanitizer, and one in each other schedule."""
    plain = list(_cases(adapter, code, subject, effort, (Forward.DECODE,)))
    yield from plain
    for seed in effort.seeds:
        schedules = (*_SCHEDULES, Schedule(OrderPolicy.RANDOM, seed))
        own = next(case for case in plain if case.seed == seed)
        yield replace(own, schedule=schedules[seed % len(schedules)])


_Run = Callable[[StateAdapter, Rig, Case], Iterator[Fault]]
_Cases = Callable[[StateAdapter, str, Subject, Effort], Iterator[Case]]


def _over(*forwards: Forward) -> _Cases:
    return partial(_cases, forwards=forwards)


def _check(
    adapter: StateAdapter, code: str, title: str, proves: str, run: _Run, cases: _Cases
) -> Check:
    about = CheckDescription(
        code=code, claims=[], title=title, proves=proves, cannot="Other sizes, and longer contexts."
    )
    return Check(
        about=about,
        excuse=lambda subject: adapter.excuse(subject, code),
        cases=partial(cases, adapter, code),
        run=partial(run, adapter),
    )


def state_checks(adapter: StateAdapter) -> tuple[Check, ...]:
    """Make the checks of an engine's classes whose layers keep states."""
    return (
        _check(
            adapter,
            "linear-states",
            "Outputs and states are those of the recurrence.",
            "Prompts, chunks, mixed batches, decodes and verifies of several layers give the "
            "outputs and the states of the recurrence, token by token in float64, and no other "
            "slot changes.",
            _run_states,
            _over(*_FORWARDS),
        ),
        replace(
            _check(
                adapter,
                "linear-states-graphs",
                "Graphs of decodes and verifies give them too.",
                "So do replays, full and padded, with other requests and lengths, behind eager "
                "prefills.",
                partial(_run_states, captured=True),
                _graph_cases,
            ),
            unfit=no_graphs,
        ),
        _check(
            adapter,
            HOST_WAITS,
            "Preparation and layers make the host wait for nothing.",
            "No eager turn, and no preparation of a replay, makes the host wait for the device.",
            _run_waits,
            _over(*_FORWARDS[::-1]),
        ),
        _check(
            adapter,
            "linear-states-races",
            "Overlapped turns give what turns one behind the other give.",
            "Batches are copied on a stream of their own, in orders that starve either stream, and "
            "the sanitizer sees no access that nothing orders.",
            _run_races,
            _race_cases,
        ),
        _check(
            adapter,
            OTHER_KERNELS,
            "Kernels that a model's configuration chooses give them too.",
            "Prompts, chunks, mixed batches and decodes by the class's other kernels give the "
            "outputs and the states of the recurrence.",
            _run_states,
            _over(*(own for own in _FORWARDS if own is not Forward.VERIFY)),
        ),
    )


def short_prompts_check(adapter: StateAdapter) -> Check:
    """Make the check of new requests with one token, for engines where these are special."""
    return _check(
        adapter,
        SHORT_PROMPTS,
        "A prompt of one token begins without a state.",
        "Prompts of one and two tokens, and decodes and verifies behind them, give the outputs and "
        "the states of the recurrence, in slots that other requests had before.",
        _run_states,
        _over(Forward.PREFILL, Forward.DECODE, Forward.VERIFY),
    )
