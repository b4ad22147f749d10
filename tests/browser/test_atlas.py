"""The site of the atlas in a browser: questions, filters, links, small screens, dark and print."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from backend_caps.atlas.build import ReleaseStore, build
from backend_caps.atlas.documents import ReleaseDocument
from backend_caps.atlas.question import Answer, asked_in, names_in, patterns, replies, verdict
from backend_caps.atlas.site import write_site
from backend_caps.atlas.tables import table_of
from tests.unit.atlas.releases import cell, release, settled, various
from tests.unit.atlas.wheels import releases_in, write_plugin, write_vllm

pytestmark = pytest.mark.slow

_PAGES = (
    "index.html",
    "releases.html",
    "releases/vllm-0.31.0.html",
    "capabilities/index.html",
    "capabilities/attention_sinks.html",
    "backends/vllm/FastBackend.html",
)
_QUESTIONS = (
    "fp8 KV, sliding window, MLA, full graphs, on B200",
    "sinks, page size 48, head size 80",
    "topk 4",
    "without host syncs",
    "head size 80",
    "page size 48",
    "fp8 kv",
    "full graphs",
    "sliding window",
    "sinks",
    "sm_90",
    "MLA",
    "block-sparse, RTX 5090, bf16",
    "graphs for verify on AMD",
    "compute capability 8.9, batch-invariant",
    "nothing of this",
)
_OF_SERVERS = (
    "sinks",
    "sinks, sm_90",
    "sinks, 8.0",
    "sinks on AMD",
    "sinks on H100 and B200",
    "fp8 kv",
    "e4m3",
    "e5m2 kv on H100",
    "page size 48",
    "page size 48, MLA",
    "MLA",
    "on AMD",
    "sm_90",
    "topk 2",
    "topk 4",
    "topk 8",
    "topk 4 on AMD",
    "does flash  attn have sinks",
    "flash-attn, sinks, H100",
    "second.name with sinks",
    "second.name, MLA",
    "secondxname, sinks",
)
"""Questions to whose answers servers add."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the site of two releases of vLLM and of a plugin."""
    folder = tmp_path_factory.mktemp("atlas")
    write_vllm(folder / "wheels", "0.30.0")
    write_vllm(folder / "wheels", "0.31.0", sinks=False)
    write_plugin(folder / "wheels", "0.31.0")
    data, releases = ReleaseStore(folder / "data"), releases_in(folder / "wheels")
    build(data, ("vllm", "acme"), releases, workers=1, progress=lambda *_: None)
    write_site(data, folder, "1.0")
    return folder


@pytest.fixture
def page(chromium: Browser, site: Path) -> Iterator[Page]:
    """Open the first page from disk; it fails where a page's script does."""
    own, faults = chromium.new_page(viewport={"width": 1280, "height": 900}), list[str]()
    own.on("pageerror", lambda error: faults.append(str(error)))
    own.on("console", lambda message: faults.append(message.text))
    own.goto((site / "index.html").as_uri())
    yield own
    own.close()
    assert faults == []


def _rows(page: Page) -> list[str]:
    """List the backends that are shown, in their order."""
    return page.locator("#backends tbody th a").all_text_contents()


def _answers(page: Page, question: str) -> dict[str, str]:
    """Ask, and return the answer beside each backend."""
    page.locator("#question").fill(question)
    rows = page.locator("#backends tbody tr")
    said = rows.locator(".answer > span").all_text_contents()
    return dict(zip(_rows(page), said, strict=True))


def test_newest_backends_of_all_are_shown_first(page: Page) -> None:
    """Also those of plugins, whose tables are loaded behind the page."""
    page.locator("#count").filter(has_text="3 backends").wait_for()

    assert _rows(page) == ["FastBackend", "SlowBackend", "AcmeBackend"]


def test_question_is_answered_with_reason_and_line(page: Page) -> None:
    """Those that fit come first; the others have the line that says no."""
    page.locator("#count").filter(has_text="3 backends").wait_for()

    assert _answers(page, "bf16") == {
        "FastBackend": "fits",
        "SlowBackend": "does not fit",
        "AcmeBackend": "does not fit",
    }
    assert page.locator("#understood").text_content() == "bf16 → dtypes"
    assert "vllm/v1/attention/backend.py:" in page.locator("tbody tr").nth(1).inner_text()


def test_link_keeps_what_was_asked(page: Page) -> None:
    """The address opens the same view, of an older release too."""
    page.locator("#question").fill("sinks")
    page.locator("#of").select_option("vllm")
    page.locator("#release").select_option("0.30.0")
    page.locator("#backends small", has_text="vllm 0.30.0").first.wait_for()
    address = page.url

    page.goto("about:blank")
    page.goto(address)

    page.locator("#backends small", has_text="vllm 0.30.0").first.wait_for()
    assert page.locator("#question").input_value() == "sinks"
    assert page.locator("#release").input_value() == "0.30.0"
    assert page.locator("#count").text_content() == "1 fits, 1 may fit, 0 does not fit"


def test_machine_and_model_are_asked_too(page: Page) -> None:
    """They are words of the question by another way; clearing takes all of them back."""
    page.locator("#machine").select_option("H100")
    page.locator("#kind").select_option("mha")
    assert (
        page.locator("#understood").text_content()
        == "mha → attention_arch · h100 → compute_capability"
    )
    assert "machine=H100" in page.url

    page.get_by_role("button", name="Clear").click()

    page.locator("#count").filter(has_text="3 backends").wait_for()
    assert page.url.endswith("index.html#")


def test_table_that_cannot_be_read_is_named(chromium: Browser, site: Path, tmp_path: Path) -> None:
    """A site that was copied without its tables says what it lacks."""
    for name in ("index.html", "atlas.css", "atlas.js"):
        shutil.copyfile(site / name, tmp_path / name)
    page = chromium.new_page()

    page.goto((tmp_path / "index.html").as_uri())

    page.locator("#count", has_text="acme-0.31.0.js cannot be read; build the atlas").wait_for()
    page.close()


def test_last_question_is_the_one_that_is_answered(page: Page) -> None:
    """An older question whose table is loaded later does not replace its answer."""
    page.locator("#count").filter(has_text="3 backends").wait_for()
    page.evaluate(
        """async () => {
          const { question, of, release } = document.getElementById("ask").elements;
          of.value = "vllm";
          release.append(new Option("0.30.0"));
          release.value = "0.30.0";
          const older = atlas.update();
          of.value = "";
          question.value = "bf16";
          await atlas.update();
          await older;
        }"""
    )

    assert page.locator("#understood").text_content() == "bf16 → dtypes"
    assert len(_rows(page)) == 3


def test_name_of_a_backend_is_found(page: Page) -> None:
    """By its class or by the name that flags use, in a question too."""
    page.locator("#count").filter(has_text="3 backends").wait_for()
    page.locator("#question").fill("slow")
    assert _rows(page) == ["SlowBackend"]

    page.locator("#question").fill("does FastBackend have sinks")
    page.locator("#count").filter(has_text="may fit").wait_for()
    assert _rows(page) == ["FastBackend"]

    page.locator("#question").fill("zzz")
    assert page.locator("#backends tbody").inner_text() == "Nothing matches"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", _PAGES)
def test_page_is_accessible(page: Page, site: Path, path: str, scheme: str) -> None:
    """Axe has nothing to say in light or in dark, contrast included."""
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto((site / path).as_uri() + ("#question=sinks" if path == "index.html" else ""))

    # Styles of a page on disk cannot be fetched once more, as it would for rules of media alone.
    found = Axe().run(page, options={"preload": False}).response

    assert [each["id"] for each in found["violations"]] == []


@pytest.mark.parametrize("path", _PAGES)
def test_page_fits_a_telephone(page: Page, site: Path, path: str) -> None:
    """On 390 pixels only tables are wider, and those scroll by themselves."""
    page.goto((site / path).as_uri())

    page.set_viewport_size({"width": 390, "height": 844})

    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_print_shows_every_row(page: Page) -> None:
    """What a screen shows by the hundred is whole on paper."""
    _keep(page, 150)
    assert len(_rows(page)) == 20
    page.locator("#more").click()
    assert len(_rows(page)) == 152
    page.evaluate("atlas.update()")

    page.evaluate("dispatchEvent(new Event('beforeprint'))")

    assert len(_rows(page)) == 152
    page.emulate_media(media="print")
    assert not page.locator("#ask").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")


def _keep(page: Page, number: int) -> None:
    """Show a plugin's table with many rows of one kind."""
    many = release({"dtypes": cell(["float32"])})
    classes = {f"Class{at}": many.classes["A"] for at in range(number)}
    own = many.model_copy(update={"distribution": "acme", "version": "0.31.0", "classes": classes})
    page.locator("#count").filter(has_text="3 backends").wait_for()
    page.evaluate("(table) => { atlas.keep(table); return atlas.update(); }", table_of(own))
    page.locator("#count").filter(has_text=f"{number + 2} backends").wait_for()


@pytest.mark.parametrize("question", _QUESTIONS)
def test_browser_answers_as_python_does(page: Page, question: str) -> None:
    """Both read the same patterns, and compare values alike."""
    own = various()

    assert _of_browser(page, own, question) == _of_python(own, question)


@pytest.mark.parametrize("question", _OF_SERVERS)
def test_browser_answers_with_settings_as_python_does(page: Page, question: str) -> None:
    """Both find what servers decide of a class's names, or of the one that a question has."""
    own = settled()
    bare = {name: each.model_copy(update={"settings": None}) for name, each in own.classes.items()}

    expected = _of_python(own, question)

    assert _of_browser(page, own, question) == expected
    assert expected != _of_python(own.model_copy(update={"classes": bare}), question)


def test_browser_says_what_a_server_says(chromium: Browser, settled_site: Path) -> None:
    """The reason is the server's own words with their line."""
    page = chromium.new_page()
    page.goto((settled_site / "index.html").as_uri())
    page.locator("#question").fill("topk 8")
    page.locator("#count", has_text="does not fit").wait_for()
    page.locator("#more").click()

    row = page.locator("#backends tbody tr", has_text="Neither18")

    said = row.locator(".answer").inner_text()
    page.close()
    assert said.split("\n") == [
        "does not fit",
        "max_speculative_topk: FLASH_ATTN False (the server)",
        "s.py:4",
    ]


def test_settings_are_loaded_for_a_question(chromium: Browser, settled_site: Path) -> None:
    """The first view has none of them; a question loads them once."""
    page, loaded = chromium.new_page(), list[str]()
    page.on("request", lambda request: loaded.append(request.url.rpartition("/")[2]))
    page.goto((settled_site / "index.html").as_uri())
    page.locator("#count", has_text=" backends").wait_for()
    tables = "[...document.querySelectorAll('script.table')].map((n) => JSON.parse(n.textContent))"
    [table] = page.evaluate(tables)
    first = [name for name in loaded if name.startswith("vllm-")]

    for question in ("sinks", "sinks, H100"):
        page.locator("#question").fill(question)
        page.locator("#understood", has_text=question.partition(",")[0]).wait_for()
        page.evaluate("atlas.update()")

    page.close()
    assert (table["tried"], {len(row[5]) for row in table["rows"]}) == (None, {0})
    assert first == []
    assert [name for name in loaded if name.startswith("vllm-")] == ["vllm-1.0.js"]


@pytest.fixture(scope="module")
def settled_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the site of one release whose classes have settings."""
    folder = tmp_path_factory.mktemp("settled")
    data = ReleaseStore(folder / "data")
    data.store(settled())
    write_site(data, folder, "1.0")
    return folder


_Answers = tuple[list[list[object]], dict[str, int]]


def _of_browser(page: Page, own: ReleaseDocument, question: str) -> _Answers:
    """Return what the script understands, and the answers of a release's classes by number."""
    asked, answers = page.evaluate(
        """async ([stored, question]) => {
          atlas.keep(stored);
          const { asked } = atlas.askedIn(question);
          const rows = await atlas.rowsOf("vllm", "1.0");
          asked.named = atlas.spelledIn(question, rows);
          return [
            asked.map((each) => [each.words, each.capability, each.test, each.value]),
            Object.fromEntries(rows.map((row) => [row.name, atlas.verdict(row, asked).answer])),
          ];
        }""",
        [table_of(own), question],
    )
    return asked, answers


def _of_python(own: ReleaseDocument, question: str) -> _Answers:
    """Return the same of Python; where nothing is asked, the script counts all as fitting."""
    asked, order = asked_in(question), [*Answer]
    named = names_in(question, own.names)
    understood: list[list[object]] = [
        [each.words, each.capability, each.test, each.value] for each in asked
    ]
    return understood, {
        name: order.index(verdict(replies(own, name, asked, named))) if asked else 0
        for name in own.classes
    }


def test_browser_reads_every_pattern(page: Page) -> None:
    """None is refused, and each row of the table is there."""
    read = "JSON.parse(document.getElementById('questions').textContent)"

    made = page.evaluate(f"{read}.map((each) => (new RegExp(each.pattern), each.pattern))")

    assert made == [row["pattern"] for row in patterns()]
