"""A trace in a terminal."""

from __future__ import annotations

import pytest

from backend_caps.report.sections import markdown
from backend_caps.report.trace_documents import TraceDetails
from backend_caps.report.trace_views import trace_view
from tests.unit.report.conftest import Golden
from tests.unit.report.timelines import details, document, level

_PLAIN = details(level("exact", 1)).model_copy(update={"drafts": None})


@pytest.mark.parametrize(
    ("name", "told", "files"),
    [
        ("trace.md", details(stand_in="acme in place of fa3"), ("t.json: open it",)),
        ("trace-of-plain-decode.md", _PLAIN, ()),
    ],
    ids=["with a stand-in", "plain"],
)
def test_trace_view_is_known_to_the_last_letter(
    name: str, told: TraceDetails, files: tuple[str, ...], golden: Golden
) -> None:
    """What ran and by which clock, a row for each level, what was left out, and the files."""
    golden(name, markdown(trace_view(document(told), files)))
