"""Pages of each kind as a browser shows them: to eyes, keys, screen readers and printers."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from click.testing import CliRunner
from playwright.sync_api import Browser, ViewportSize

from backend_caps.cli.invocation import Invocation
from backend_caps.cli.main import cli
from backend_caps.report.backends import report_document
from backend_caps.report.html.page import page as page_of
from tests.browser.conftest import Golden, Show
from tests.unit.building import installed
from tests.unit.report import scene
from tests.unit.report.html.pages import PAGES

pytestmark = pytest.mark.slow

_EACH = pytest.mark.parametrize("kind", PAGES)
_SHEET: ViewportSize = {"width": 1055, "height": 726}
"""A4 in landscape, without its margins of 9 mm."""
_BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@_EACH
def test_page_is_read_aloud_whole(kind: str, show: Show, golden: Golden) -> None:
    """What a screen reader reads of a page is known to the last word."""
    golden(f"{kind}.yaml", show(PAGES[kind]()).locator("body").aria_snapshot() + "\n")


@_EACH
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible(kind: str, scheme: str, show: Show) -> None:
    """Axe has nothing to say of a page in light or in dark, its contrast included."""
    page = show(PAGES[kind]())
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    found = Axe().run(page).response

    assert [each["id"] for each in found["violations"]] == []


@_EACH
def test_page_fits_a_telephone(kind: str, show: Show) -> None:
    """On 400 pixels only tables and drawings are wider, and those scroll by themselves."""
    page = show(PAGES[kind]())

    page.set_viewport_size({"width": 400, "height": 800})

    assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_comparison_on_a_telephone_shows_more_than_its_subjects(show: Show) -> None:
    """On 400 pixels the column that stays takes less than half, in the head and below it."""
    page = show(PAGES["diff"]())

    page.set_viewport_size({"width": 400, "height": 800})

    first = page.locator(".grid tr > :first-child:visible")
    assert max(first.evaluate_all("all => all.map((cell) => cell.offsetWidth)")) <= 160


@pytest.mark.parametrize("kind", ["report", "evidence", "diff"])
def test_page_on_a_telephone_opens_on_its_table(kind: str, show: Show) -> None:
    """On 390 pixels the table begins in the upper half: the legend is below, filters are folded."""
    page = show(PAGES[kind]())

    page.set_viewport_size({"width": 390, "height": 844})

    tops = page.locator(".grid :is(.wide, .legend)").evaluate_all(
        "all => all.map((own) => own.getBoundingClientRect().top)"
    )
    legend, table = tops
    assert (table < 422, legend > table) == (True, True)


@pytest.mark.parametrize(("width", "is_shown"), [(390, False), (1280, True)])
def test_filters_are_folded_on_a_telephone(width: int, is_shown: bool, show: Show) -> None:
    """Where there is room all filters are shown; where not, all but the first can be opened."""
    page = show(PAGES["report"]())
    page.set_viewport_size({"width": width, "height": 844})
    where, more = page.get_by_label("where"), page.get_by_text("More filters")

    folded = (where.is_visible(), more.is_visible())
    if more.is_visible():
        more.click()

    assert (*folded, where.is_visible()) == (is_shown, not is_shown, True)


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_drawing_of_who_forces_what_is_never_cut(width: int, show: Show) -> None:
    """Each box of the drawing is within the screen."""
    page = show(PAGES["explain"]())

    page.set_viewport_size({"width": width, "height": 800})

    ends = page.locator(".forces li:visible").evaluate_all(
        "all => all.map((box) => box.getBoundingClientRect().right)"
    )
    assert max(ends) <= width


def test_drawing_shows_who_decides_and_folds_what_nobody_declares(show: Show) -> None:
    """Values that are the worst because no backend declares them are opened by hand."""
    page = show(PAGES["explain"]())
    drawing = page.locator("figure", has=page.locator(".forces"))

    shown = drawing.locator("> .forces > li").first.inner_text().split("\n")
    folded = drawing.get_by_text("deterministic = no")
    was_visible = folded.is_visible()
    drawing.get_by_text("no backend declares them").click()

    assert [line for line in shown if line] == [
        *("fa3", "backend", "piecewise-cuda-graph", "rule", "two-batch-overlap", "rule"),
        *("decide", "host_seq_lens = exact", "for the server"),
    ]
    assert (was_visible, folded.is_visible()) == (False, True)


def test_long_name_leaves_room_for_its_message(show: Show) -> None:
    """A name without a place to break is broken all the same, in each table that has it."""
    name, (fa3, *_) = "n" * 200, scene.BACKENDS
    assert fa3.declaration is not None
    conditions = fa3.declaration.conditions
    backend = installed(name, fa3.declaration.capabilities, conditions=conditions)

    heads = show(page_of(report_document([backend], (), None), ())).locator("tbody th")

    assert heads.count() == 2
    assert all(width <= 352 for width in heads.evaluate_all("all => all.map((c) => c.offsetWidth)"))


def test_page_is_read_without_its_script(chromium: Browser) -> None:
    """Where no script runs the matrix is there, and nothing that would not work is."""
    page = chromium.new_page(java_script_enabled=False)
    page.set_content(PAGES["report"]())

    shown = [page.locator(each).first.is_visible() for each in ("main table", "form")]
    page.close()

    assert shown == [True, False]


def test_page_is_light_and_dark(show: Show) -> None:
    """The paper follows what the system is set to."""
    page = show(PAGES["report"]())

    page.emulate_media(color_scheme="light")
    light = page.evaluate(_BACKGROUND)
    page.emulate_media(color_scheme="dark")

    assert (light, page.evaluate(_BACKGROUND)) == ("rgb(255, 255, 255)", "rgb(21, 24, 28)")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("report", id="report"),
        pytest.param("explain -- --attention-backend torch_native", id="explain"),
    ],
)
def test_page_of_the_shipped_backends_prints_on_one_sheet(line: str, show: Show) -> None:
    """The report on what this project ships, and a plan of it, take one landscape page."""
    words, _, flags = line.partition(" -- ")
    invocation = Invocation(server_flags=tuple(flags.split()))
    done = CliRunner().invoke(cli, [*words.split(), "--format", "html"], obj=invocation)

    assert show(done.stdout).pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 1


@_EACH
def test_page_is_no_wider_than_its_sheet(kind: str, show: Show) -> None:
    """On paper nothing is cut off, and nothing is made smaller for it."""
    page = show(PAGES[kind]())

    page.set_viewport_size(_SHEET)
    page.emulate_media(media="print")

    assert page.evaluate("document.documentElement.scrollWidth") == _SHEET["width"]


def test_page_lets_no_other_script_run(chromium: Browser) -> None:
    """What gets into a page all the same is not run: its policy knows the page's own script."""
    page = chromium.new_page()
    text = PAGES["report"]().replace("</main>", "<script>document.title = 'run'</script></main>")

    page.set_content(text)
    title = page.title()
    page.close()

    assert title == "Installed backends · backend-caps"
