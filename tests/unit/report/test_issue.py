"""The text of a report to an engine's maintainers."""

from __future__ import annotations

from dataclasses import replace

from backend_caps.report.check_documents import CostDocument, PartCostDocument
from backend_caps.report.issue import IssueEntry, ScriptRun, issue_text

PART = PartCostDocument(launches=3, host_waits=1, bytes_to_host=8, bytes_to_device=0)
COST = CostDocument(
    forward="decode",
    host_seq_lens="none",
    num_requests=4,
    num_context_tokens=50,
    prepare=PART,
    layer=PART.model_copy(update={"host_waits": 0, "bytes_to_host": 0}),
    bytes_held=512,
)
RUN = ScriptRun(
    text="assert 1 == 2\n", command="A=1 python script.py", printed="AssertionError", shows=True
)
ENTRY = IssueEntry(
    check="numerics",
    title="Outputs are right.",
    what="tokens 1 differ",
    places=["engine/a.py:1", "engine/a.py:9"],
    case="numerics/decode@eager#0",
    replay="backend-caps check --engine engine Own --case x",
    also=["memory"],
    cost=COST,
    script=RUN,
)
VERSIONS = {"python": "3.11.7", "engine": "1.0"}


def test_report_has_what_maintainers_need() -> None:
    """Versions, what was seen where, the case and its command, the cost, and the script's run."""
    text = issue_text("Own", VERSIONS, ["flex_attention, by its definition"], [ENTRY])

    assert text.startswith("# 1 fault of `Own`\n\nVersions: python 3.11.7, engine 1.0.\n")
    for part in (
        "Stood in for: flex_attention, by its definition.",
        "## `numerics` fails\n\nStated: Outputs are right.\n\nSeen: tokens 1 differ.\n",
        "At `engine/a.py:1`, `engine/a.py:9`.\n",
        "Checks that fail there too: `memory`.\n",
        "```sh\nbackend-caps check --engine engine Own --case x\n```\n",
        (
            "Cost: an eager batch of decode (4 requests over 50 tokens, host lengths: none) has "
            "3 launches, 1 host wait, 8 bytes to the host in its preparation, 3 launches in each "
            "layer, and holds 512 bytes beside the KV cache.\n"
        ),
        "```python\nassert 1 == 2\n```\n",
        (
            "It shows the fault here, by `A=1 python script.py`, and printed\n\n"
            "```text\nAssertionError\n```\n"
        ),
    ):
        assert part in text


def test_report_leaves_out_what_is_not_known() -> None:
    """Without a line, other checks or a cost, none is named; a missing script has its reason."""
    bare = replace(ENTRY, places=[], also=[], cost=None, script="no script shows it: trees")

    text = issue_text("Own", VERSIONS, [], [bare, bare])

    assert text.startswith("# 2 faults of `Own`\n")
    assert not [word for word in ("At `", "too:", "Cost", "Stood in") if word in text]
    assert "no script shows it: trees\n" in text


def test_script_that_shows_nothing_is_said() -> None:
    """A reader is not sent after a script that passed."""
    entry = replace(ENTRY, script=replace(RUN, shows=False, printed=""))

    assert "It did not show the fault here, by" in issue_text("Own", VERSIONS, [], [entry])
