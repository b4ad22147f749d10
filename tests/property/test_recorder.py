"""Laws of a recording, whose clock breaks no order, and of evidence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from backend_caps import ServerFlags, Use, resolve
from backend_caps.capability.backend import Backend, Status
from backend_caps.capability.evidence import UNVERIFIABLE, Standing, believed
from backend_caps.capability.provenance import BY_HAND
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.insight.recorder import Recorder
from backend_caps.report.trace_timeline import TimedOp
from backend_caps.simulator import register, simulate
from backend_caps.simulator import streams as sim
from backend_caps.simulator.streams import Event, Stream
from tests.property.order import improvements
from tests.property.strategies import flags, law, some_uses
from tests.unit.evidence import verified

STREAMS = (1, 2, 3)
_stream = st.sampled_from(STREAMS)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), _stream, st.none()),
        st.tuples(st.just("wait"), _stream, _stream),
        st.tuples(st.just("stand"), _stream, st.none()),
    ),
    max_size=24,
)


def _played(acts: list[tuple[str, int, int | None]]) -> tuple[Recorder, list[tuple[int, int]]]:
    """Run a program; return its recorder, and which operator has to end before which begins.

    Orders are kept by hand: an operator's number, and that of one that waits for it.
    """
    register()
    recorder = Recorder({handle: f"lane {handle}" for handle in STREAMS})
    orders: list[tuple[int, int]] = []
    last: dict[int, set[int]] = {handle: set() for handle in STREAMS}
    host: set[int] = set()
    with simulate() as simulation:
        simulation.watcher = recorder
        for act, handle, other in acts:
            if act == "launch":
                number = len(recorder.ran)
                orders += [(before, number) for before in last[handle] | host]
                with sim.stream(Stream(handle=handle)):
                    torch.zeros(1, device="sim")
                last[handle] = {number}
            elif act == "wait" and other is not None:
                event = Event()
                event.record(Stream(handle=other))
                event.wait(Stream(handle=handle))
                last[handle] |= last[other]
            else:
                Stream(handle=handle).synchronize()
                host |= last[handle]
    return recorder, orders


@given(ACTS)
def test_nothing_begins_before_what_it_waits_for(acts: list[tuple[str, int, int | None]]) -> None:
    """What stream order, events and the host's waits put behind another begins behind its end."""
    recorder, orders = _played(acts)

    ran = recorder.ran
    assert all(ran[one].end_ns <= ran[other].begin_ns for one, other in orders)


@given(ACTS)
def test_no_lane_overlaps_itself(acts: list[tuple[str, int, int | None]]) -> None:
    """A stream runs one operator at a time."""
    recorder, _ = _played(acts)

    for lane in recorder.lanes:
        ops = [own for own in recorder.ran if own.lane == lane]
        assert all(one.end_ns <= other.begin_ns for one, other in pairwise(ops))


@given(ACTS)
def test_nothing_waits_for_nobody(acts: list[tuple[str, int, int | None]]) -> None:
    """An operator begins when its launch, its stream's last one, or an arrow into it allows."""
    recorder, _ = _played(acts)

    for place, own in enumerate(recorder.ran):
        assert own.begin_ns in _reasons(recorder, own, place)


def _reasons(recorder: Recorder, own: TimedOp, place: int) -> set[int | None]:
    before = [each.end_ns for each in recorder.ran[:place] if each.lane == own.lane]
    arrows = [arrow.begin_ns for arrow in recorder.arrows if arrow.end_lane == own.lane]
    return {own.launched_ns, *before[-1:], *arrows}


@given(ACTS)
def test_arrows_lead_forward(acts: list[tuple[str, int, int | None]]) -> None:
    """Nothing goes on before what it waited for was there."""
    recorder, _ = _played(acts)

    assert all(arrow.begin_ns <= arrow.end_ns for arrow in recorder.arrows)


some_names = st.frozensets(st.sampled_from(list(CAPABILITIES)))
"""Any claims."""


def _required(uses: Collection[Use], standing: Standing) -> list[Use]:
    """Require evidence of every use, as those of a registry that does have it."""
    return [_believed(use, standing) for use in uses]


def _believed(use: Use, standing: Standing) -> Use:
    if use.adds_only:  # a composite's own, which is believed
        return use
    backend = Backend(
        name=use.backend, status=Status.OK, source=BY_HAND, declaration=use.declaration
    )
    left = believed(backend, standing)
    return replace(use, declaration=left.declaration, unverified=left.unverified)


@law
@given(server=flags, running=some_uses, names=some_names)
def test_required_evidence_never_improves_a_value(
    server: ServerFlags, running: list[Use], names: frozenset[str]
) -> None:
    """What is taken out for want of evidence makes nothing better."""
    before = resolve(running, server)

    assert improvements(resolve(_required(running, verified(*names)), server), before) == []


@law
@given(server=flags, running=some_uses, names=some_names, more=some_names)
def test_more_evidence_never_worsens_a_value(
    server: ServerFlags, running: list[Use], names: frozenset[str], more: frozenset[str]
) -> None:
    """One more verified claim takes nothing away."""
    before = resolve(_required(running, verified(*names)), server)

    after = resolve(_required(running, verified(*names, *more)), server)

    assert improvements(before, after) == []


@law
@given(running=some_uses, names=some_names)
def test_required_evidence_takes_out_once(running: list[Use], names: frozenset[str]) -> None:
    """What is left is believed: requiring evidence again takes nothing out."""
    once = _required(running, verified(*names))

    twice = _required(once, verified(*names))

    assert [use.declaration for use in twice] == [use.declaration for use in once]


@law
@given(running=some_uses)
def test_what_is_left_without_evidence_is_the_worst(running: list[Use]) -> None:
    """Nothing that could be wrong is left where nothing is verified."""
    left = _required(running, Standing())

    values = [
        (name, value)
        for use in left
        if use.declaration is not None and not use.adds_only
        for capabilities in (
            use.declaration.capabilities,
            *(when.capabilities for when in use.declaration.conditions),
        )
        for name, value in capabilities.stated().items()
        if name not in UNVERIFIABLE
    ]
    assert [(name, value) for name, value in values if value != CAPABILITIES[name].worst] == []
