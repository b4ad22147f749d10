"""What a step costs, as people read it."""

from __future__ import annotations

import pytest

from backend_caps.report.html.page import page
from backend_caps.report.plans import plan_document
from backend_caps.report.sections import Lines, Opened, markdown
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
EXPECTED = r"""## What a step costs, by what the host is told about lengths

- counted: 8 decode steps of 4 requests at each level, in the middle of their outputs; means of a step
- drafts: EAGLE, top-k 4, 3 steps: trees of 8 tokens, the last token included
- run: the plan's flags and backends, with small random models on a simulated device; the target replayed by a graph; 1.88 tokens a request and step
- exact costs a step more than none: 2 host waits, 272 bytes to the host, 1 event wait, 2 launches

| host\_seq\_lens | host waits | for lengths | bytes to host | of lengths | event waits | launches |
| --- | --- | --- | --- | --- | --- | --- |
| none | 1 | 0 | 160 | 0 | 4 | 378.25 |
| exact (this plan) | 3 | 1 | 432 | 264 | 5 | 380.25 |

- each step waits once for its tokens; what it waits more is for lengths, or hidden
- hidden: item at own.py:3 made the host wait 8 times in 8 steps
- not run with upper\_bound: a step raised ValueError.
- what is above exact in the table is what it would cost without backend fa3; rule piecewise-cuda-graph
- the lengths are the column of a request pool of 33 rows, 8 bytes each; a server's has a row for each request that can run, and beyond 8192 rows the batch's alone cross
- not counted: steps of prompts, other ranks, and what models of a real size launch more
- no times: the simulated device has none, and no stored result of a GPU holds any (make gpu writes them)
"""  # noqa: E501 - as it is printed


def _with(**changes: object) -> MeasuredDocument:
    return MeasuredDocument.model_validate({**dict(MEASURED), **changes})


def _lines(measured: MeasuredDocument) -> list[str]:
    sections = [each for each in measured_view(measured, PLAN) if isinstance(each, Lines)]
    return [line for section in sections for line in section.lines]


def test_measured_view_is_known_to_the_last_letter() -> None:
    """What ran, what it cost, and what that means are shown in this order."""
    text = markdown(measured_view(MEASURED, PLAN))

    assert text == EXPECTED


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        pytest.param(
            {"drafts": DRAFTS.model_copy(update={"topk": 1, "num_steps": 1})},
            "drafts: EAGLE, top-k 1, 1 step: chains of 8 tokens, the last token included",
            id="a chain",
        ),
        pytest.param(
            {"replayed": False, "tokens_made": 1.0},
            "run: the plan's flags and backends, with small random models on a simulated device; "
            "the target run eagerly; 1 token a request and step",
            id="eager",
        ),
        pytest.param(
            {"levels": [EXACT], "left_out": []},
            "other levels cost the same: a D2H copy and a host wait in every overlapped "
            "speculative step",
            id="one level",
        ),
    ],
)
def test_lines_say_what_ran(changes: dict[str, object], line: str) -> None:
    """What was run is said in words."""
    assert line in _lines(_with(**changes))


def test_steps_that_do_not_speculate_have_no_drafts() -> None:
    """Without speculation no line is about drafts."""
    lines = _lines(_with(drafts=None))

    assert [line for line in lines if line.startswith("drafts")] == []


def test_levels_with_one_reason_are_told_together() -> None:
    """What keeps two levels out is said once."""
    reason = "a step raised ValueError."
    left_out = [LeftOutDocument(level=own, reason=reason) for own in ("none", "upper_bound")]

    lines = _lines(_with(levels=[EXACT], left_out=left_out))

    assert f"not run with none and upper_bound: {reason}" in lines


def test_pool_is_not_told_of_where_no_length_crosses() -> None:
    """How large the pool is matters to its column alone, which opting out keeps on the device."""
    planned = NONE.model_copy(update={"is_planned": True})

    lines = _lines(_with(levels=[planned], left_out=[]))

    assert [line for line in lines if "request pool" in line] == []


def test_times_are_a_table_at_the_end() -> None:
    """What a GPU measured is shown with its name; what it did not measure is a dash."""
    text = markdown(measured_view(_with(times=[TIME]), PLAN))

    assert "no times" not in text
    assert text.endswith("| NVIDIA H200 | mirror 4096 | none | 32 | 812 | — | — |\n")


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
