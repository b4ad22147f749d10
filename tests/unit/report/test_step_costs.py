"""What a step costs, as people read it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backend_caps.report.html.page import page
from backend_caps.report.plans import plan_document
from backend_caps.report.sections import Opened, markdown
from backend_caps.report.step_costs import (
    DraftsDocument,
    LeftOutDocument,
    LevelDocument,
    MeasuredDocument,
    MeasureDocument,
    TimeDocument,
    measured_view,
)
from backend_caps.resolution.resolver import resolve
from backend_caps.resolution.rules import RuleSet
from tests.unit.building import READS, flags, use
from tests.unit.report.conftest import Golden

PLAN = plan_document(
    resolve(
        [use("fa3", READS)],
        flags("--speculative-algorithm EAGLE"),
        rules=RuleSet.builtin("sglang-0.5.13"),
    ),
    (),
)
NONE = LevelDocument(
    level="none",
    is_planned=False,
    host_waits=1,
    waits_for_lengths=0,
    bytes_to_host=160,
    bytes_of_lengths=0,
    bytes_to_device=168.5,
    event_waits=4,
    launches=378.25,
    hidden_syncs={},
)
EXACT = LevelDocument(
    level="exact",
    is_planned=True,
    host_waits=3,
    waits_for_lengths=1,
    bytes_to_host=432,
    bytes_of_lengths=264,
    bytes_to_device=168.5,
    event_waits=5,
    launches=380.25,
    hidden_syncs={"item at own.py:3": 8},
)
DRAFTS = DraftsDocument(algorithm="EAGLE", topk=4, num_steps=3, num_draft_tokens=8)
MEASURED = MeasuredDocument(
    device="sim",
    batch_size=4,
    num_steps=8,
    pool_size=33,
    drafts=DRAFTS,
    replayed=True,
    tokens_made=1.875,
    levels=[NONE, EXACT],
    left_out=[LeftOutDocument(level="upper_bound", reason="a step raised ValueError.")],
    times=[],
)
TIME = TimeDocument(
    file="gpu.json",
    hardware="NVIDIA H200",
    comparison="mirror 4096",
    level="none",
    batch_size=32,
    step_us=812.4,
    host_wait_us=None,
    lengths_us=None,
)


def _with(**changes: object) -> MeasuredDocument:
    return MeasuredDocument.model_validate({**dict(MEASURED), **changes})


_VIEWS: Mapping[str, MeasuredDocument] = {
    "measured": MEASURED,
    "measured-one-level": _with(
        drafts=DRAFTS.model_copy(update={"topk": 1, "num_steps": 1}),
        replayed=False,
        tokens_made=1.0,
        levels=[EXACT],
        left_out=[],
        times=[TIME],
    ),
    "measured-without-drafts": _with(
        drafts=None,
        levels=[NONE.model_copy(update={"is_planned": True})],
        left_out=[
            LeftOutDocument(level=own, reason="a step raised ValueError.")
            for own in ("upper_bound", "exact")
        ],
    ),
}


@pytest.mark.parametrize("name", _VIEWS)
def test_measured_view_is_known_to_the_last_letter(name: str, golden: Golden) -> None:
    """What ran, what it cost, and what that means are shown in this order."""
    golden(f"{name}.md", markdown(measured_view(_VIEWS[name], PLAN)))


def test_page_of_costs_is_that_of_the_plan() -> None:
    """What was counted stands on the page that the explanation has, with its drawing."""
    document = MeasureDocument(schema_="backend-caps/measure@1", plan=PLAN, measured=MEASURED)

    text = page(document, (), [Opened(name="host_seq_lens")])

    parts = ["<h2>What a step costs, ", "<details open>", '<h2 id="graph">Who forces what']
    assert [part for part in sorted(parts, key=text.index) if part in text] == parts


def test_page_without_costs_says_why() -> None:
    """Where nothing could be counted the page has the reason, and no table."""
    document = MeasureDocument(
        schema_="backend-caps/measure@1", plan=PLAN, measured=None, problem="no such backend."
    )

    text = page(document, ())

    assert "<li>no such backend.</li>" in text
    assert "bytes to host" not in text
