"""Pages as text: what is in them, and what a plugin cannot put in."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from pydantic import BaseModel

from backend_caps.report.backends import report_document
from backend_caps.report.check_catalog import CheckListDocument
from backend_caps.report.html.page import environment, page, parts_of
from backend_caps.report.plan_views import relay_view
from backend_caps.report.sections import Heading, Lines, Section, Sections, Table
from tests.unit.report import engine_scene, scene
from tests.unit.report.html.pages import PAGES, SCRIPT, hostile, large

_EACH = pytest.mark.parametrize("kind", PAGES)
_STEPS = "3 steps of 2 requests on cuda"
_COMMANDS: Sections = (Heading("Run it"), Lines(("pip install x",), "commands"))


class _Read(HTMLParser):
    """What a browser would read: tags with their attributes, and the text in some."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, list[str]] = {}
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._tag = tag

    def handle_data(self, data: str) -> None:
        self.inside.setdefault(self._tag, []).append(data)
        self._tag = ""

    def attributes(self) -> set[str]:
        """Name all attributes that some tag has."""
        return {name for _, attributes in self.tags for name in attributes}


def _digest(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()


@_EACH
def test_policy_names_what_is_inlined(kind: str) -> None:
    """The policy lets the one style and the one script of the page run, and nothing else.

    What it would stop, in attributes, is not there to begin with. A page is ASCII, so that no
    encoding of a redirected output changes what was digested.
    """
    text = PAGES[kind]()
    read = _Read(text)

    style, script = read.inside["style"][0], read.inside["script"][-1]
    policy = next(a["content"] for tag, a in read.tags if tag == "meta" and "http-equiv" in a)
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{_digest(style)}'; "
        f"script-src 'sha256-{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )
    assert [a for a in read.attributes() if a == "style" or a.startswith("on")] == []
    assert text.isascii()


def test_page_fetches_nothing() -> None:
    """Nothing but its own parts is referred to."""
    read = _Read(PAGES["report"]())

    told = [a[key] for _, a in read.tags for key in ("src", "href") if a.get(key)]
    assert {each[:1] for each in told if each} == {"#"}


def test_hostile_words_make_no_tags() -> None:
    """A page of hostile plugins has the tags and attributes of any other, and reads as given."""
    ours, theirs = _Read(page(scene.report(scene.FORCED), ())), _Read(page(hostile(), ()))

    assert {tag for tag, _ in theirs.tags} <= {tag for tag, _ in ours.tags}
    assert theirs.attributes() <= ours.attributes()
    assert SCRIPT in "".join(part for parts in theirs.inside.values() for part in parts)


def test_hostile_words_end_nothing_and_turn_nothing() -> None:
    """What cells open is data, whatever it would close; no character turns the text around."""
    text = page(hostile(), ())

    (data,) = re.findall('<script type="application/json">(.*?)</script>', text)
    assert "<" not in data
    assert [character for character in "\x1b\x07\u202e" if character in text] == []


def test_large_page_is_small() -> None:
    """Two hundred backends take less than a megabyte."""
    assert len(page(large(200), ()).encode()) < 1_000_000


def test_name_that_a_template_lacks_is_an_error() -> None:
    """A template that names what it was not given fails, and shows no gap."""
    template = environment(Path()).from_string("{{ nothing }}")

    with pytest.raises(UndefinedError, match="'nothing' is undefined"):
        template.render()


def test_report_of_nothing_says_so() -> None:
    """Where nothing is installed the page says what to do."""
    text = page(report_document((), (), None), ())

    assert "No installed distribution declares a backend." in text


def test_report_on_an_engine_says_that_plugins_are_shown_too() -> None:
    """What is installed beside an engine is not counted as the engine's in the title."""
    reading = engine_scene.SGLANG
    backends = [*reading.backends, *scene.BACKENDS]
    text = page(report_document(backends, (), None, reading=reading), ())

    assert _Read(text).inside["h1"] == ["Backends of sglang 0.5.23 and installed ones"]


def test_report_with_a_plan_leads_to_it() -> None:
    """What was asked for is the first thing on the page, and a link to the rest of it."""
    read = _Read(page(scene.report(scene.FORCED), ()))
    assert ("a", {"href": "#plan"}) in read.tags
    assert read.inside["a"][1].startswith("host_seq_lens is exact")


def test_report_on_an_engine_has_its_name_and_rules() -> None:
    """The page of an engine says which, and what its flags force."""
    reading = engine_scene.SGLANG
    text = page(report_document(reading.backends, (), None, reading=reading), ())

    headings = _Read(text).inside["h1"] + _Read(text).inside["h2"]
    assert headings[:1] == ["Backends of sglang 0.5.23"]
    assert "Rules under sglang 0.5.23" in headings


@pytest.mark.parametrize(
    ("document", "sections", "title"),
    [
        pytest.param(scene.relayed(), relay_view(scene.relayed()), _STEPS, id="relay"),
        pytest.param(scene.relayed(), _COMMANDS, "Run it", id="commands"),
        pytest.param(scene.relayed(), (Lines(("a",)), Heading("b")), "Relay", id="lines-first"),
        pytest.param(
            CheckListDocument(schema_="backend-caps/check-list@1", checks=[]),
            (Heading("numerics"),),
            "Check list",
            id="list",
        ),
    ],
)
def test_other_documents_are_pages_of_their_sections(
    document: BaseModel, sections: Sections, title: str
) -> None:
    """What has no page of its own is titled by its first heading, where that says what it is."""
    told = list(sections)
    read = _Read(page(document, told))

    headings = [each.text for each in told if isinstance(each, Heading) and each.text != title]
    assert (read.inside["h1"], read.inside.get("h2", [])[: len(headings)]) == ([title], headings)


def test_commands_are_shown_as_they_are_typed() -> None:
    """A command stands in a block of its own."""
    assert ("pre", {"tabindex": "0"}) in _Read(page(scene.relayed(), _COMMANDS)).tags


@pytest.mark.parametrize(
    ("number", "folds"), [pytest.param(32, 0, id="some"), pytest.param(33, 1, id="many")]
)
@pytest.mark.parametrize("write", ["lines", "rows"])
def test_long_section_is_folded(number: int, folds: int, write: str) -> None:
    """What would push all else off the screen is opened by whoever wants it."""
    lines = Lines(("a line",) * number)
    section: Section = lines if write == "lines" else Table(("a",), (("b",),) * number)

    read = _Read(page(scene.relayed(), (Heading("a"), section)))

    assert [tag for tag, _ in read.tags].count("details") == folds
    assert read.inside.get("summary", []) == [f"{number} {write}"] * folds


def test_sections_before_a_heading_have_none() -> None:
    """What stands first stands under no title."""
    first, then = Lines(("first",)), Lines(("then",))

    assert parts_of([first, Heading("title"), then]) == [("", [first]), ("title", [then])]
