"""The site: built strict and from the checkout alone; every link of it leads somewhere."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser

from docs.tools.public import MODULES, is_error, public_names
from tests.docs.pages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

_OFFLINE = """
import runpy, sys

def refuse(event, args):
    if event in {"socket.connect", "socket.getaddrinfo"}:
        raise RuntimeError(f"the build asked the network: {args}")

sys.addaudithook(refuse)
runpy.run_module("mkdocs", run_name="__main__", alter_sys=True)
"""
_ATTRIBUTE = re.compile(r'\s(id|name|href|src)="([^"]*)"')
_FETCHED = re.compile(
    r'<(?:script|img|iframe|source)\s[^>]*src="([^"]*)"|<link\s[^>]*href="([^"]*)"'
)
HOSTS = {"github.com", "semver.org", "ui.perfetto.dev"}
"""Whom pages name: evidence, and tools. Nobody has to be asked for a page to be read."""
_UNDERLINED = """links => links.map(link => {
    const pen = document.createElement('canvas').getContext('2d');
    pen.font = getComputedStyle(link.querySelector('code')).font;
    return [parseFloat(getComputedStyle(link).textUnderlineOffset),
            pen.measureText('_').actualBoundingBoxDescent];
})"""
_WIDTHS = "blocks => blocks.map(block => [block.scrollWidth, block.clientWidth])"
_LINES = "keys => keys.map(key => key.getClientRects().length)"

READ = (
    "index.html",
    "how-to/find-who-forces-the-d2h.html",
    "reference/schemas/plan.html",
    "reference/sglang.html",
)
"""Pages of every kind but the longest, which axe-core takes ten seconds for."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A page of the site."""

    ids: frozenset[str]
    targets: tuple[str, ...]
    fetched: tuple[str, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, where nobody can be reached."""
    site = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-c", _OFFLINE, "build", "--quiet", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return site


@pytest.fixture(scope="module")
def pages(folder: Path) -> Mapping[Path, Built]:
    """Read every page as a browser gets it."""
    return {path: _read(path.read_text("utf-8")) for path in sorted(folder.rglob("*.html"))}


def _read(text: str) -> Built:
    found = [(name, html.unescape(value)) for name, value in _ATTRIBUTE.findall(text)]
    return Built(
        ids=frozenset(value for name, value in found if name in {"id", "name"}),
        targets=tuple(value for name, value in found if name in {"href", "src"}),
        fetched=tuple(one or other for one, other in _FETCHED.findall(text)),
    )


def test_site_has_no_dead_link(folder: Path, pages: Mapping[Path, Built]) -> None:
    """Every link, image and script of every page leads to a file, and to a place that it has."""
    dead = {
        f"{path.name} -> {target}"
        for path, page in pages.items()
        for target in page.targets
        if not _is_elsewhere(target) and not _leads(path, target, folder, pages)
    }

    assert dead == set()


def _is_elsewhere(target: str) -> bool:
    return bool(urlsplit(target).scheme)


def _leads(page: Path, target: str, folder: Path, pages: Mapping[Path, Built]) -> bool:
    path, _, place = target.partition("#")
    base = folder if path.startswith("/") else page.parent  # a page of errors names all from there
    file = Path(os.path.normpath(base / unquote(path).lstrip("/"))) if path else page
    file = file / "index.html" if file.is_dir() else file
    if not place or file not in pages:
        return file.is_file()
    return unquote(place) in pages[file].ids


def test_pages_fetch_nothing_from_elsewhere(pages: Mapping[Path, Built]) -> None:
    """Scripts, styles, fonts and images are the site's own; links go to hosts that are listed."""
    foreign = {each for page in pages.values() for each in page.fetched if _is_elsewhere(each)}
    hosts = {urlsplit(target).netloc for page in pages.values() for target in page.targets}

    assert (foreign, hosts - {""}) == (set(), HOSTS)


@pytest.mark.parametrize("module", MODULES)
def test_public_name_has_its_place(module: str, folder: Path, pages: Mapping[Path, Built]) -> None:
    """Every public name of a module but its errors has a heading on the module's page."""
    page = pages[folder / "reference" / "api" / f"{MODULES[module]}.html"]

    assert {name for name in _documented(module) if not _has(page, name)} == set()


def _documented(module: str) -> Iterator[str]:
    yield from (name for name in public_names(module) if not is_error(module, name))


def _has(page: Built, name: str) -> bool:
    return any(each.endswith(f".{name}") for each in page.ids)


def test_linked_source_has_numbered_lines(folder: Path, pages: Mapping[Path, Built]) -> None:
    """A source file that a page links to is a page, and each line of it has a place."""
    path = "backend_caps/relay/future_map.py"
    num_lines = (ROOT / path).read_text("utf-8").count("\n")

    ids = pages[folder / "source" / f"{path}.html"].ids

    assert {f"__codelineno-0-{line}" for line in range(1, num_lines + 1)} <= ids


def test_tensor_tables_keep_their_columns(folder: Path) -> None:
    """A table of tensors is shown as it stands in the docstring."""
    text = (folder / "reference" / "api" / "relay.html").read_text("utf-8")

    shown = html.unescape(re.sub(r"<[^>]+>", "", text))

    assert "req_pool_indices  [B] int64 or int32, device  unique rows" in shown


def test_site_is_searched_from_disk(folder: Path, chromium: Browser) -> None:
    """Opened without a server, the site finds a word, and asks nobody else for anything."""
    page, asked = chromium.new_page(), list[str]()
    page.on("request", lambda request: asked.append(urlsplit(request.url).scheme))
    page.goto((folder / "index.html").as_uri())

    page.get_by_placeholder("Search").press_sequentially("mirror")
    page.locator(".md-search-result__item").first.wait_for()

    assert set(asked) == {"file"}


def test_copied_are_commands_alone(folder: Path, chromium: Browser) -> None:
    """What a terminal has printed, and its prompt, are not copied."""
    page = chromium.new_page()
    page.goto((folder / "how-to" / "find-who-forces-the-d2h.html").as_uri())
    block = page.locator(".language-console code").first

    block.evaluate("code => code.setAttribute('data-md-copying', '')")

    lines = block.inner_text().strip().splitlines()
    assert lines[0].startswith("backend-caps explain")
    assert not any(line.startswith("host_seq_lens") for line in lines)


@pytest.mark.parametrize("page", ["reference/errors", "how-to/use-it-inside-sglang"])
def test_sentences_of_a_program_are_not_cut(page: str, folder: Path, chromium: Browser) -> None:
    """What a program prints in one long line is folded, so that nobody has to scroll for it."""
    window = chromium.new_page(viewport={"width": 1440, "height": 900})
    window.goto((folder / f"{page}.html").as_uri())

    widths = window.locator(".highlight pre > code").evaluate_all(_WIDTHS)

    assert [(wanted, there) for wanted, there in widths if wanted > there] == []


def test_underlined_names_keep_their_underscores(folder: Path, chromium: Browser) -> None:
    """The line under a link of code lies below what it would hide."""
    window = chromium.new_page(viewport={"width": 1440, "height": 900})
    window.goto((folder / "reference" / "api" / "index.html").as_uri())

    lines = window.locator("td > a:has(> code)").evaluate_all(_UNDERLINED)

    assert len(lines) > 4
    assert [(line, sign) for line, sign in lines if line <= sign] == []


def test_keys_of_a_schema_are_read_whole(folder: Path, chromium: Browser) -> None:
    """No key of a table is broken within its words."""
    window = chromium.new_page(viewport={"width": 1440, "height": 900})
    window.goto((folder / "reference" / "schemas" / "declaration.html").as_uri())

    assert set(window.locator("td:first-child code").evaluate_all(_LINES)) == {1}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", READ, ids=lambda path: path.rpartition("/")[2])
def test_page_can_be_read_by_everybody(
    page: str, scheme: Literal["light", "dark"], folder: Path, chromium: Browser
) -> None:
    """axe-core finds nothing serious on a page of each kind, in light and in dark."""
    window = chromium.new_page(color_scheme=scheme)
    window.goto((folder / page).as_uri())
    window.locator("[data-md-component=search][aria-label]").wait_for(state="attached")

    found = Axe().run(window).response["violations"]

    assert [each["id"] for each in found if each["impact"] in {"serious", "critical"}] == []


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        pytest.param("other.html", True, id="a page"),
        pytest.param("other.html#place", True, id="a place of a page"),
        pytest.param("#here", True, id="a place of its own"),
        pytest.param("/other.html", True, id="from the top"),
        pytest.param("gone.html", False, id="no page"),
        pytest.param("other.html#gone", False, id="no place of a page"),
        pytest.param("#gone", False, id="no place of its own"),
    ],
)
def test_dead_link_is_distinguished_from_others(
    target: str, expected: bool, tmp_path: Path
) -> None:
    """A link is dead where its file, or the place in it, is not there."""
    texts = {"page.html": '<p id="here">', "other.html": '<a name="first" id="place">'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
    pages = {tmp_path / name: _read(text) for name, text in texts.items()}

    assert _leads(tmp_path / "page.html", target, tmp_path, pages) is expected
