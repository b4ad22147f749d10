"""What runs show: prompts, a dry run of one rank and of several, and what a step costs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend_caps.report.dry_run_documents import DryRunDocument
from backend_caps.report.dry_run_views import dry_run_view
from backend_caps.report.generate_documents import GenerateDocument
from backend_caps.report.generate_views import generate_view
from backend_caps.report.html.page import page
from backend_caps.report.sections import Opened, Section, markdown
from backend_caps.report.step_costs import MeasureDocument, costs_view
from tests.unit.report.conftest import Golden
from tests.unit.report.stored import read

_OF_PROMPTS = (
    *("generate", "generate-drafted", "generate-simulated", "generate-without-streams"),
    "generate-one-of-each",
)
_DRY_RUNS = ("dry-run", "dry-run-of-ranks", "dry-run-on-a-gpu", "dry-run-with-a-stand-in")
_MEASURED = ("measured", "measured-one-level", "measured-without-drafts")


def _view(name: str) -> Iterator[Section]:
    if name in _OF_PROMPTS:
        return generate_view(read(name, GenerateDocument))
    if name in _DRY_RUNS:
        return dry_run_view(read(name, DryRunDocument))
    return costs_view(read(name, MeasureDocument))


@pytest.mark.parametrize("name", [*_OF_PROMPTS, *_DRY_RUNS, *_MEASURED])
def test_view_of_a_run_is_known_to_the_last_letter(name: str, golden: Golden) -> None:
    """What was decided, what ran and what it came to stand in this order."""
    golden(f"{name}.md", markdown(_view(name)))


@pytest.mark.parametrize(
    ("name", "ranks", "title"),
    [
        pytest.param("dry-run", slice(1), "it ran as it was decided", id="as decided"),
        pytest.param(
            "dry-run-of-ranks", slice(1, 2), "not as it was decided in 1 way", id="one way"
        ),
        pytest.param(
            "dry-run-of-ranks", slice(1, 3), "not as it was decided in 1 way", id="of two ranks"
        ),
    ],
)
def test_page_is_titled_by_whether_it_ran_as_decided(name: str, ranks: slice, title: str) -> None:
    """What a dry run is asked stands first on its page; what ranks found alike counts once."""
    document = read(name, DryRunDocument)
    document = document.model_copy(update={"ranks": document.ranks[ranks]})

    text = page(document, dry_run_view(document))

    assert f"<h1>Dry run: {title}</h1>" in text


def test_page_of_costs_is_that_of_the_plan() -> None:
    """What was counted stands on the page that the explanation has, with its drawing."""
    text = page(read("measured", MeasureDocument), (), [Opened(name="host_seq_lens")])

    parts = ["<h2>What a step costs, ", "<details open>", '<h2 id="graph">Who forces what']
    assert [part for part in sorted(parts, key=text.index) if part in text] == parts


def test_page_without_costs_says_why() -> None:
    """Where nothing could be counted the page has the reason, and no table."""
    measured = read("measured", MeasureDocument)
    document = measured.model_copy(update={"measured": None, "problem": "no such backend."})

    text = page(document, ())

    assert "<li>no such backend.</li>" in text
    assert "bytes to host" not in text
