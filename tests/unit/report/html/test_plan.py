"""A plan on a page: who holds what, what to try, and each value with its causes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import CAPABILITIES, BatchKind, Capabilities
from backend_caps.report.html.graph import Graph, graph
from backend_caps.report.html.page import answer, page, value_groups
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.report.sections import Opened
from backend_caps.report.words import Try, tries
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from tests.unit.building import READS, flags, use
from tests.unit.report import scene
from tests.unit.report.conftest import Golden
from tests.unit.report.html.pages import SCRIPT

_FREE_FLAGS = "--disable-piecewise-cuda-graph"


def _plan(*names: str) -> PlanDocument:
    """Plan for backends that read lengths, in decode and verify."""
    phases = (Phase.DECODE, Phase.VERIFY)
    uses = [use(name, READS, phase=phase) for name in names for phase in phases]
    return plan_document(
        resolve(uses, flags(_FREE_FLAGS), rules=RuleSet.builtin("sglang-0.5.13")), ()
    )


def _drawn(plan: PlanDocument) -> Graph:
    drawing = graph(plan)
    assert drawing is not None
    return drawing


def test_drawing_is_known_to_the_last_letter(golden: Golden) -> None:
    """Who holds which value below the best, in which phases, and who would allow a better one."""
    drawing = _drawn(scene.plan(scene.FORCED)[1])

    boxes = [f"{box.kind} | {box.whole} | {box.note}" for box in drawing.boxes]
    golden("plan-graph.txt", "\n".join([*boxes, "", *(line.text for line in drawing.lines), ""]))


def test_lines_that_decide_lie_above_the_others() -> None:
    """Heavy lines are drawn last."""
    lines = _drawn(scene.plan(scene.FORCED)[1]).lines

    decides = [line.decides for line in lines]
    assert decides == sorted(decides)


def test_boxes_lie_apart() -> None:
    """No box of a column covers another."""
    drawing = _drawn(scene.plan(scene.FORCED)[1])

    for x in {box.x for box in drawing.boxes}:
        tops = sorted(box.y for box in drawing.boxes if box.x == x)
        assert all(b - a > drawing.box[1] for a, b in pairwise(tops))


def test_boxes_lie_in_the_drawing() -> None:
    """However many are on either side, the drawing holds them."""
    drawing = _drawn(_plan(*(f"b{number}" for number in range(20))))

    ends = [(box.x + drawing.box[0], box.y + drawing.box[1]) for box in drawing.boxes]
    assert min(box.y for box in drawing.boxes) >= 0
    assert all(x <= drawing.width and y <= drawing.height for x, y in ends)


def test_long_name_is_cut_and_kept_whole() -> None:
    """A box shows as much of a name as there is room, and keeps all; control characters show."""
    box = _drawn(_plan(f"\u202e{SCRIPT * 3}")).boxes[0]

    assert (box.title, box.whole) == (
        "\\u202e<script>alert(1)</script><script>alert(1)<…",
        f"\\u202e{SCRIPT * 3}",
    )


def test_best_plan_has_no_drawing() -> None:
    """Where nobody holds anything there is nothing to draw."""
    best = Capabilities.model_validate({name: kind.best for name, kind in CAPABILITIES.items()})
    uses = [use("best", best, phase=phase) for phase in Phase]

    assert (
        graph(
            plan_document(
                resolve(uses, flags(_FREE_FLAGS), rules=RuleSet.builtin("sglang-0.5.13")), ()
            )
        )
        is None
    )


def test_tries_of_phases_are_joined() -> None:
    """What helps several phases is told once."""
    (found,) = [each for each in tries(_flipping().flips) if each.name == "graph_replay"]

    assert found == Try(
        name="graph_replay",
        phases=("decode", "verify"),
        was="none",
        becomes="single_token_decode",
        remedies=("Use another.",),
    )


def _flipping() -> PlanDocument:
    plan = _plan("fa3")
    flips = [
        {
            "capability": "graph_replay",
            "phase": phase,
            "value": [],
            "becomes": [BatchKind.SINGLE_TOKEN_DECODE.value],
            "remedies": ["Use another."],
        }
        for phase in ("decode", "verify")
    ]
    return PlanDocument.model_validate({**plan.model_dump(by_alias=True), "flips": flips})


@pytest.mark.parametrize("names", [(), ("host_seq_lens",), ("page_sizes", "graph_replay")])
def test_values_that_were_asked_for_stand_open(names: tuple[str, ...]) -> None:
    """An explanation shows what was asked for, in each phase."""
    places = value_groups(_plan("fa3"), [Opened(name=name) for name in names])

    assert {value.name for place in places for value in place.values if value.is_open} == {*names}


def test_values_of_a_phase_that_was_asked_for_stand_open() -> None:
    """Where one phase was asked for, no other's value is open; the server's is."""
    names = ("host_seq_lens", "graph_replay")

    places = value_groups(_plan("fa3"), [Opened(name=name, phase="verify") for name in names])

    opened = [(place.title, each.name) for place in places for each in place.values if each.is_open]
    assert opened == [("For the server", "host_seq_lens"), ("In verify", "graph_replay")]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param(
            Opened(name="graph_replay"),
            "graph_replay is not used in prefill; none in decode, verify",
            id="of phases",
        ),
        pytest.param(
            Opened(name="graph_replay", phase="verify"),
            "graph_replay is none in verify",
            id="of one",
        ),
        pytest.param(
            Opened(name="two_batch_overlap"), "two_batch_overlap is no", id="of the server"
        ),
    ],
)
def test_page_is_titled_by_what_was_asked_for(asked: Opened, told: str) -> None:
    """The answer stands first, and what the host is told of lengths behind it."""
    text = page(_plan("fa3"), (), [asked])

    assert f"<h1>{told}</h1>\n<p>host_seq_lens is exact" in text


def test_title_names_the_engine_that_was_read() -> None:
    """As an explanation does."""
    plan = _plan("fa3").model_copy(update={"engine": "sglang 0.5.23"})

    assert answer(plan, Opened(name="page_sizes")).startswith("with sglang 0.5.23, page_sizes is ")


def test_phase_that_nobody_runs_has_no_causes() -> None:
    """Values of a phase without a backend say so."""
    _, prefill, *_ = value_groups(_plan("fa3"), ())

    told = {(value.words, value.decided_by, value.causes) for value in prefill.values}
    assert told == {("", "no backend is used there", None)}
