"""`--format html`: no command that prints a document refuses it, and only it loads templates."""

from __future__ import annotations

import pytest

from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report.check_catalog import CATALOG, CheckListDocument
from backend_caps.report.check_views import check_list_view, check_view
from backend_caps.report.html.page import page
from backend_caps.report.sections import Lines
from tests.cli.conftest import CommandLine
from tests.unit.report.stored import checked

_FLAGS = "--attention-backend acme_reads --speculative-algorithm EAGLE"


@pytest.mark.parametrize(
    ("line", "title"),
    [
        pytest.param("report --path @", "Installed backends", id="report"),
        pytest.param(f"resolve --path @ -- {_FLAGS}", "Plan ", id="resolve"),
        pytest.param("select --path @", "--attention-backend auto is", id="select"),
        pytest.param("config show", "Config", id="config"),
        pytest.param("check --list", "Check list", id="check"),
    ],
)
def test_command_prints_a_page(line: str, title: str, acme: CommandLine) -> None:
    """A document is written as one page, with its title."""
    own, separator, flags = line.partition(" -- ")

    result = acme.run(f"{own} --format html{separator}{flags}")

    assert (result.exit_code, result.stdout[:15]) == (0, "<!doctype html>")
    assert f"<title>{title}" in result.stdout


def test_explanation_stands_open_on_its_page(acme: CommandLine) -> None:
    """Of the values of a plan, those are open that were asked for."""
    result = acme.run(f"explain page_sizes --path @ --format html -- {_FLAGS}")

    (opened,) = result.stdout.split("<details open>")[1:]
    assert opened.partition("</b>")[0].strip() == "<summary><b>page_<wbr>sizes"


def test_explanation_of_a_phase_stands_open_there_alone(acme: CommandLine) -> None:
    """Of a value of several phases, only that of the phase that was asked for is open."""
    line = "explain graph_replay --phase verify --path @ --format html"

    result = acme.run(f"{line} -- {_FLAGS}")

    before, opened = result.stdout.split("<details open>")
    assert "<h3>In verify</h3>" in before
    assert opened.partition("</b>")[0].strip() == "<summary><b>graph_<wbr>replay"


def test_claims_and_checks_stand_open_on_their_page() -> None:
    """What a check was run for is not folded, though it claims and checks all that there is."""
    failed = checked()
    (claim, *_), (check, *_) = failed.claims, failed.checks
    claims = [claim.model_copy(update={"capability": name}) for name in CAPABILITIES]
    checks = [check.model_copy(update={"code": code}) for code in CATALOG]
    whole = failed.model_copy(update={"claims": claims, "checks": checks})
    about = [each for each in check_view(whole) if not isinstance(each, Lines)]

    assert "<details" not in page(whole, about)


def test_failed_claim_is_seen_among_others() -> None:
    """What failed has a shape before its word, as in a report, and so has what held."""
    text = page(checked(), check_view(checked()))

    shapes = ('<use href="#failed"/></svg> failed<', '<use href="#verified"/></svg> held<')
    assert [text.count(shape) for shape in shapes] == [3, 1]
    assert "<td>not checked</td>" in text


def test_check_list_is_no_check() -> None:
    """The page of all checks is not called by the first of them."""
    document = CheckListDocument(schema_="backend-caps/check-list@1", checks=[*CATALOG.values()])

    assert "<h1>Check list</h1>" in page(document, check_list_view(document))
