"""A plan on a page: who holds what, what to try, and each value with its causes."""

from __future__ import annotations

import pytest

from backend_caps.capability.kind import Phase
from backend_caps.capability.vocabulary import CAPABILITIES, BatchKind, Capabilities
from backend_caps.report.html.page import answer, forces, page, value_groups
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.report.sections import Opened
from backend_caps.report.words import tries
from backend_caps.resolution.resolver import resolve
from tests.unit.building import READS, RULES_13, flags, use
from tests.unit.report import scene
from tests.unit.report.conftest import Golden
from tests.unit.report.html.pages import SCRIPT

_FREE_FLAGS = "--disable-piecewise-cuda-graph"


def _plan(*names: str) -> PlanDocument:
    """Plan for backends that read lengths, in decode and verify."""
    phases = (Phase.DECODE, Phase.VERIFY)
    uses = [use(name, READS, phase=phase) for name in names for phase in phases]
    return plan_document(resolve(uses, flags(_FREE_FLAGS), rules=RULES_13), ())


def test_values_stand_with_who_decides_them(golden: Golden) -> None:
    """Values below the best are grouped by their owners; apart, those that nobody declares."""
    told = [
        f"{'; '.join(map(' '.join, owners))} | {value} | {place}"
        for groups in forces(scene.plan(scene.FORCED)[1])
        for owners, values in [*groups.items(), ((), [("", "")])]
        for value, place in values
    ]

    golden("plan-forces.txt", "\n".join([*told, ""]))


def test_hostile_name_of_an_owner_is_text() -> None:
    """Control characters of a name show, and markup is escaped."""
    text = page(_plan(f"\u202e{SCRIPT}"), ())

    assert "<b>\\u202e&lt;script&gt;alert(1)&lt;/script&gt;</b>" in text


def test_best_plan_forces_nothing() -> None:
    """Where every value is the best there is, the page says so."""
    best = Capabilities.model_validate({name: kind.best for name, kind in CAPABILITIES.items()})
    uses = [use("best", best, phase=phase) for phase in Phase]
    text = page(plan_document(resolve(uses, flags(_FREE_FLAGS), rules=RULES_13), ()), ())

    assert "Nobody forces anything: every value is the best there is." in text


def test_tries_of_phases_are_joined() -> None:
    """What helps several phases is told once."""
    found = tries(_flipping().flips)

    assert [[flip.phase for flip in same] for same in found] == [["decode", "verify"]]


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
    groups = value_groups(_plan("fa3"), [Opened(name=name) for name in names])

    assert {name for _, values, opened in groups for name in values if name in opened} == {*names}


def test_values_of_a_phase_that_was_asked_for_stand_open() -> None:
    """Where one phase was asked for, no other's value is open; the server's is."""
    names = ("host_seq_lens", "graph_replay")

    groups = value_groups(_plan("fa3"), [Opened(name=name, phase="verify") for name in names])

    opened = [
        (title, name) for title, values, opened in groups for name in opened if name in values
    ]
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
    text = page(_plan("fa3"), ())

    assert text.count("no backend is used there</p>") == len(_plan("fa3").phases["prefill"])
