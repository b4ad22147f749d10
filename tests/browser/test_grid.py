"""The matrix: filtered, sorted and opened, by hand and by keys."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from backend_caps.capability.vocabulary import Capabilities, HostSeqLens
from backend_caps.report.backends import report_document
from backend_caps.report.html.page import page as page_of
from tests.browser.conftest import Show
from tests.unit.building import installed
from tests.unit.report.html.pages import PAGES, SCRIPT, hostile

pytestmark = pytest.mark.slow

_LINES = """told => {
    const lines = new Map();
    const range = document.createRange();
    for (const node of told.childNodes)
        [...(node.data ?? '')].forEach((letter, at) => {
            range.setStart(node, at);
            range.setEnd(node, at + 1);
            const top = Math.round(range.getBoundingClientRect().top);
            lines.set(top, (lines.get(top) ?? '') + letter);
        });
    return [...lines.values()];
}"""
"""What stands in each line, as a browser breaks them."""


@pytest.fixture
def report(show: Show) -> Page:
    """Open the report on the scene's six backends."""
    return show(PAGES["report"]())


def _shown(page: Page) -> list[str]:
    rows = page.locator(".grid tbody tr:visible th")
    return [text.partition("\n")[0].strip() for text in rows.all_inner_texts()]


def test_filter_by_text_keeps_backends_of_that_name(report: Page) -> None:
    """Typing keeps the rows whose backend or distribution has the letters, whatever their case."""
    report.get_by_label("Filter").fill("TRITON-caps")

    shown = (_shown(report), report.get_by_role("status").inner_text())
    assert shown == (["triton"], "1 of 6 backends")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        pytest.param("conditional", ["fa3"], id="an origin"),
        pytest.param("upper_bound", ["triton"], id="a value"),
        pytest.param("broken", ["torn"], id="broken"),
    ],
)
def test_filter_by_a_capability_keeps_what_says_so(
    value: str, kept: list[str], report: Page
) -> None:
    """A capability is looked through by its value and by its origin."""
    report.get_by_label("where").select_option("host_seq_lens")
    report.get_by_label("is", exact=True).select_option(value)

    assert _shown(report) == kept


def test_filter_of_another_capability_begins_anew(report: Page) -> None:
    """A value that was chosen of one capability is not looked for in the next."""
    report.get_by_label("where").select_option("host_seq_lens")
    report.get_by_label("is", exact=True).select_option("upper_bound")

    report.get_by_label("where").select_option("graph_replay")

    chosen = report.get_by_label("is", exact=True).locator("option:checked").inner_text()
    assert (chosen, len(_shown(report))) == ("anything", 6)


def test_filter_that_nothing_matches_says_so(report: Page) -> None:
    """Where no row is left the table has one that says so, until there are others."""
    nothing = report.get_by_role("gridcell", name="Nothing matches")

    report.get_by_label("Filter").fill("no such backend")
    is_said = nothing.is_visible()
    report.get_by_role("button", name="Show all").click()

    assert (is_said, nothing.is_visible()) == (True, False)


def test_filter_is_taken_back(report: Page) -> None:
    """One button shows all again."""
    report.get_by_label("Filter").fill("torn")
    report.get_by_label("where").select_option("host_seq_lens")
    report.get_by_label("is", exact=True).select_option("broken")

    report.get_by_role("button", name="Show all").click()

    assert len(_shown(report)) == 6


@pytest.mark.parametrize(
    ("times", "order", "said"),
    [
        pytest.param(1, ["fa3", "triton", "torn"], "ascending", id="once"),
        pytest.param(2, ["hybrid", "unsaid", "old"], "descending", id="twice"),
        pytest.param(3, ["fa3", "hybrid", "torn"], None, id="thrice"),
    ],
)
def test_column_is_sorted(times: int, order: list[str], said: str | None, report: Page) -> None:
    """A column's name sorts up, then down, then as it was, and says so to a screen reader."""
    head = report.get_by_role("columnheader", name="host_seq_lens")
    for _ in range(times):
        head.get_by_role("button").click()

    assert (_shown(report)[:3], head.get_attribute("aria-sort")) == (order, said)


def test_column_of_a_scale_is_sorted_by_it(show: Show) -> None:
    """It goes from the least to the most that a backend asks for; who states nothing is last."""
    said = {level.value: Capabilities(host_seq_lens=level) for level in HostSeqLens}
    backends = [installed("says-nothing"), *(installed(name, own) for name, own in said.items())]
    page = show(page_of(report_document(sorted(backends, key=lambda own: own.name), (), None), ()))

    page.get_by_role("columnheader", name="host_seq_lens").get_by_role("button").click()

    assert _shown(page) == ["none", "upper_bound", "exact", "says-nothing"]


def test_click_opens_what_stands_behind_a_value(report: Page) -> None:
    """A cell opens its origin, its condition with the reason, and where the backend comes from."""
    report.locator(".grid tbody td").first.click()

    told = report.get_by_role("dialog").inner_text()
    assert [line for line in told.splitlines() if line] == [
        *("fa3: host_seq_lens", "✕"),
        *("value", "none"),
        *("origin", "conditional: depends on something"),
        *("exact where", "phase = decode and kv_cache_dtype = fp8_e5m2"),
        "the fp8 path sizes its workspace on the host",
        *("fa3", "status", "ok"),
        *("distribution", "fa3-caps"),
        *("version", "1.0"),
        *("declared at", "fa3_caps.py:3"),
    ]


def test_keys_move_and_open(report: Page) -> None:
    """The matrix is one stop of Tab; in it arrows move, and Enter opens."""
    report.get_by_role("button", name="Show all").focus()

    for key in ("Tab", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        report.keyboard.press(key)

    title = report.get_by_role("dialog").get_by_role("heading", level=2)
    assert title.inner_text() == "hybrid: graph_replay"


def test_escape_leads_back_to_the_value(report: Page) -> None:
    """What was opened is closed by Escape, and the focus is where it was."""
    cell = report.locator(".grid tbody td").nth(2)
    cell.click()

    report.keyboard.press("Escape")

    expect(report.get_by_role("dialog")).to_have_count(0)
    expect(cell).to_be_focused()


def test_focus_is_seen(report: Page) -> None:
    """A value that keys have reached has an outline."""
    report.get_by_role("button", name="Show all").focus()

    for key in ("Tab", "ArrowDown", "ArrowRight"):
        report.keyboard.press(key)

    expect(report.locator(".grid tbody td").first).to_have_css("outline-style", "solid")


def test_hidden_rows_are_passed_by(report: Page) -> None:
    """Arrows move among the rows that a filter has left."""
    report.get_by_label("Filter").fill("triton")
    report.get_by_role("button", name="Show all").focus()

    for key in ("Tab", "ArrowDown"):
        report.keyboard.press(key)

    expect(report.get_by_role("rowheader", name="triton triton-caps")).to_be_focused()


def test_matrix_is_reached_where_the_filter_hid_its_stop(report: Page) -> None:
    """Where the row is gone that the keys were in, Tab leads to the head of the matrix."""
    report.locator(".grid tbody th").nth(2).click()
    report.keyboard.press("Escape")
    report.get_by_label("Filter").fill("triton-caps")

    report.get_by_role("button", name="Show all").focus()
    report.keyboard.press("Tab")

    assert report.evaluate("document.activeElement.textContent") == "backend"


def test_place_in_a_panel_is_broken_between_its_parts(show: Show) -> None:
    """A path that is longer than a line goes on behind one of its signs, and keeps its number."""
    place = f"{'folder/' * 7}attention_backend.py:221"
    page = show(PAGES["report"]().replace("fa3_caps.py:3", place))
    page.locator(".grid tbody th").first.click()

    lines = page.locator("#panel dd", has_text=place).last.evaluate(_LINES)

    assert "".join(lines) == place
    assert [line[-1] for line in lines] == [*(["/"] * (len(lines) - 2)), "_", "1"]


def test_hostile_words_are_text(show: Show) -> None:
    """A backend named `<script>` is filtered and opened by that name, and nothing of it runs."""
    page = show(page_of(hostile(), ()))

    page.get_by_label("Filter").fill(SCRIPT)
    page.locator(".grid tbody tr:visible td").first.click()

    expect(page.get_by_role("dialog").get_by_role("heading", level=3)).to_have_text(SCRIPT)


def test_hostile_words_are_no_markup(show: Show) -> None:
    """Of a plugin's words neither a link nor a script is made, and none turns text around."""
    page = show(page_of(hostile(), ()))
    page.locator(".grid tbody td").first.click()

    links = page.eval_on_selector_all("a[href]", "all => all.map((a) => a.getAttribute('href'))")
    scripts = page.locator("script:not([type])").count()
    assert (links, scripts, "\u202e" in page.content()) == (["#main", "#plan"], 1, False)


def test_filter_of_differences_looks_through_rows(show: Show) -> None:
    """A comparison is searched by any word of either side."""
    page = show(PAGES["diff"]())

    page.get_by_label("Filter").fill("base.py")

    assert _shown(page) == ["class FlashAttentionBackend"]
