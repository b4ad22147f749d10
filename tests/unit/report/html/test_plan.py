"""Plans, capabilities, drawings and differences on a page."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest

from backend_caps import BatchKind, Capabilities, Phase, resolve
from backend_caps.capability.vocabulary import CAPABILITIES
from backend_caps.report import terminal
from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.difference import (
    NOWHERE,
    DifferenceDocument,
    DifferenceKind,
    diff_document,
)
from backend_caps.report.html import grid
from backend_caps.report.html.grid import Cell, Glyph, Grid, conditions_view, matrix, side_by_side
from backend_caps.report.html.page import answer, forces, page, value_groups
from backend_caps.report.plans import PlanDocument, plan_document
from backend_caps.report.sections import Lines, Opened, Picture, Table, markdown
from backend_caps.report.trace_views import picture_of
from backend_caps.report.words import tries
from tests.unit.building import READS, RULES_13, flags, use
from tests.unit.report import engine_scene, scene
from tests.unit.report.conftest import Golden
from tests.unit.report.html.pages import SCRIPT, diff
from tests.unit.report.timelines import EXACT, NONE, details, document

_FREE_FLAGS = "--disable-piecewise-cuda-graph"


def _plan(*names: str) -> PlanDocument:
    """Plan for backends that read lengths, in decode and verify."""
    phases = (Phase.DECODE, Phase.VERIFY)
    uses = [use(name, READS, phase=phase) for name in names for phase in phases]
    return plan_document(resolve(uses, flags(_FREE_FLAGS), rules=RULES_13), ())


def test_values_stand_with_who_decides_them(golden: Golden) -> None:
    """Values below the best are grouped by their owners; apart, those that nobody declares."""
    told = [
        f"{'; '.join(map(' '.join, owners))} | {value} | {place}"
        for groups in forces(scene.plan(scene.FORCED)[1])
        for owners, values in [*groups.items(), ((), [("", "")])]
        for value, place in values
    ]

    golden("plan-forces.txt", "\n".join([*told, ""]))


def test_hostile_name_of_an_owner_is_text() -> None:
    """Control characters of a name show, and markup is escaped."""
    text = page(_plan(f"\u202e{SCRIPT}"), ())

    assert "<b>\\u202e&lt;script&gt;alert(1)&lt;/script&gt;</b>" in text


def test_best_plan_forces_nothing() -> None:
    """Where every value is the best there is, the page says so."""
    best = Capabilities.model_validate({name: kind.best for name, kind in CAPABILITIES.items()})
    uses = [use("best", best, phase=phase) for phase in Phase]
    text = page(plan_document(resolve(uses, flags(_FREE_FLAGS), rules=RULES_13), ()), ())

    assert "Nothing is forced: every value is the best there is." in text


def test_tries_of_phases_are_joined() -> None:
    """What helps several phases is reported once."""
    found = tries(_flipping().flips)

    assert [[flip.phase for flip in same] for same in found] == [["decode", "verify"]]


def _flipping() -> PlanDocument:
    plan = _plan("fa3")
    flips = [
        {
            "capability": "graph_replay",
            "phase": phase,
            "value": [],
            "becomes": [BatchKind.SINGLE_TOKEN_DECODE.value],
            "remedies": ["Use another."],
        }
        for phase in ("decode", "verify")
    ]
    return PlanDocument.model_validate({**plan.model_dump(by_alias=True), "flips": flips})


@pytest.mark.parametrize("names", [(), ("host_seq_lens",), ("page_sizes", "graph_replay")])
def test_values_that_were_asked_for_stand_open(names: tuple[str, ...]) -> None:
    """An explanation shows what was asked for, in each phase."""
    groups = value_groups(_plan("fa3"), [Opened(name=name) for name in names])

    assert {name for _, values, opened in groups for name in values if name in opened} == {*names}


def test_values_of_a_phase_that_was_asked_for_stand_open() -> None:
    """Where one phase was asked for, no other's value is open; the server's is."""
    names = ("host_seq_lens", "graph_replay")

    groups = value_groups(_plan("fa3"), [Opened(name=name, phase="verify") for name in names])

    opened = [
        (title, name) for title, values, opened in groups for name in opened if name in values
    ]
    assert opened == [("For the server", "host_seq_lens"), ("In verify", "graph_replay")]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param(
            Opened(name="graph_replay"),
            "graph_replay is not used in prefill; none in decode, verify",
            id="of phases",
        ),
        pytest.param(
            Opened(name="graph_replay", phase="verify"),
            "graph_replay is none in verify",
            id="of one",
        ),
        pytest.param(
            Opened(name="two_batch_overlap"), "two_batch_overlap is no", id="of the server"
        ),
    ],
)
def test_page_is_titled_by_what_was_asked_for(asked: Opened, told: str) -> None:
    """The answer stands first, and what the host receives of lengths behind it."""
    assert f"<h1>{told}</h1>\n<p>host_seq_lens is exact" in page(_plan("fa3"), [asked])


def test_title_names_the_engine_that_was_read() -> None:
    """As an explanation does."""
    plan = _plan("fa3").model_copy(update={"engine": "sglang 0.5.23"})

    assert answer(plan, Opened(name="page_sizes")).startswith("with sglang 0.5.23, page_sizes is ")


def test_phase_that_nobody_runs_has_no_causes() -> None:
    """Values of a phase without a backend say so."""
    text = page(_plan("fa3"), ())

    assert text.count("no backend is used there</p>") == len(_plan("fa3").phases["prefill"])


_PLACE = "fa3_caps.py:3"
_TEMPLATES = Path(grid.__file__).parent / "templates"


def _grid(*rows: tuple[Cell, ...]) -> Grid:
    return Grid(columns=("a", "b", "c"), rows=rows)


def _engine() -> ReportDocument:
    reading = engine_scene.SGLANG
    return report_document(reading.backends, (), None, reading=reading)


def _written(cell: Cell) -> str:
    """Write a cell, its shapes, and what it opens."""
    shapes = [own.label for own in (cell.glyph, cell.mark) if own is not None]
    opened = "; ".join(f"{term}: {text}" for term, text in cell.detail)
    told = f"{cell.text} {shapes} ({cell.note}) {opened}"
    return " ".join(told.replace("['", "<").replace("']", ">").replace("', '", ", ").split())


_REPORTS: list[tuple[str, Callable[[], ReportDocument]]] = [
    ("matrix", lambda: scene.report(None)),
    ("matrix-with-evidence", scene.verified),
    ("matrix-of-an-engine", _engine),
]


@pytest.mark.parametrize(("name", "report"), _REPORTS, ids=[name for name, _ in _REPORTS])
def test_matrix_is_known_to_the_last_letter(
    name: str, report: Callable[[], ReportDocument], golden: Golden
) -> None:
    """Each cell has its value, the shape of its origin, the mark of its evidence, and details."""
    shown = matrix(report())

    lines = [f"columns: {', '.join(shown.columns[1:])}"]
    for row in shown.rows:
        lines += ["", f"# {_written(row[0])}", *map(_written, row[1:])]
    golden(f"{name}.txt", "\n".join(lines) + "\n")


def test_conditions_are_listed_for_paper() -> None:
    """What a click would open is a table too, with the place of each condition."""
    _, table = conditions_view(scene.report(None))

    assert isinstance(table, Table)
    assert [(*row[:4], row[5]) for row in table.rows] == [
        ("fa3", "host_seq_lens", "exact", "phase = decode and kv_cache_dtype = fp8_e5m2", _PLACE)
    ]


def test_no_conditions_are_no_table() -> None:
    """Where nothing depends there is no heading either."""
    assert list(conditions_view(scene.report(None).model_copy(update={"backends": []}))) == []


def test_same_details_are_written_once() -> None:
    """A page of many backends does not repeat what is the same behind their cells."""
    cell = Cell(text="yes", detail=(("origin", "declared"),))
    row = (Cell(text="a", detail=(("status", "ok"),)), cell, cell)

    data = _grid(row, row).data()

    assert data == {
        "details": [[["status", "ok"]], [["origin", "declared"]]],
        "rows": [[0, 1, 1], [0, 1, 1]],
        "orders": [[], [], []],
    }


def test_legend_has_each_shape_once_in_its_order() -> None:
    """A legend explains what is shown, and no more."""
    failed = Cell(text="no", glyph=Glyph.DECLARED, mark=Glyph.FAILED)
    row = (Cell(text="a", glyph=Glyph.BROKEN), failed, failed)

    shapes = (Glyph.DECLARED, Glyph.BROKEN, Glyph.FAILED)
    assert _grid(row).legend == tuple((shape, None) for shape in shapes)


def test_glyph_is_found_by_its_symbol() -> None:
    """A document's word is the name of a shape, which a reader hears with spaces."""
    glyph = Glyph.of("became-conditional")

    assert (glyph, glyph.label) == (Glyph.BECAME_CONDITIONAL, "became conditional")


def test_each_glyph_is_drawn() -> None:
    """Every shape has its symbol, and every symbol a shape."""
    symbols = re.findall('<symbol id="([^"]+)"', (_TEMPLATES / "glyphs.html").read_text("utf-8"))

    assert sorted(symbols) == sorted(glyph.value for glyph in Glyph)


DOCUMENT = document(details())


@pytest.fixture(scope="module")
def picture() -> Picture:
    """Both levels."""
    return picture_of(details(), [EXACT, NONE])


def test_page_holds_the_picture(picture: Picture) -> None:
    """The picture stands in the page as a whole, in the letters of the page."""
    written = picture.svg.encode("ascii", "xmlcharrefreplace").decode("ascii")

    assert written in page(DOCUMENT, [picture])


def test_policy_lets_every_style_of_the_page_through(picture: Picture) -> None:
    """Both style elements are named by their digests, and nothing is styled in an attribute."""
    text = page(DOCUMENT, [picture])

    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digests = [b64encode(sha256(own.encode()).digest()).decode() for own in styles]
    allowed = " ".join(f"'sha256-{own}'" for own in digests)
    assert len(styles) == 2
    assert f"style-src {allowed};" in unescape(text)
    assert " style=" not in text


def test_picture_styles_nothing_outside_of_itself(picture: Picture) -> None:
    """Each rule of its style begins with its own class: the page's parts are not touched."""
    rules = re.findall(r"(?:^|[{}])\s*([^{}@]+?)\s*\{", picture.style)

    selectors = [own.strip() for rule in rules for own in rule.split(",")]
    assert selectors
    assert {own for own in selectors if not own.startswith((".trace", "figure > .trace"))} == set()


def test_words_have_no_picture(picture: Picture, capsys: pytest.CaptureFixture[str]) -> None:
    """A terminal and markdown show what is written, and leave the picture out."""
    terminal.show([Lines(("a word",)), picture])

    assert capsys.readouterr().out == "a word\n"
    assert markdown([Lines(("a word",)), picture]) == "- a word\n"


def test_sides_stand_beside_each_other_with_their_places() -> None:
    """A row has what it was, what it is, and where both say so."""
    row = side_by_side(diff()).rows[0]

    told = [(cell.text, cell.note) for cell in row]
    assert told == [
        ("class FlashAttentionBackend", ""),
        ("host_seq_lens", ""),
        ("stricter", ""),
        ("none", "fa3.py:11"),
        ("inherited from BaseAttnBackend, counts as exact", "base.py:7"),
    ]


def test_row_opens_both_sides_in_full() -> None:
    """What a cell cuts off is there where the row is opened."""
    words = "word " * 100
    found = DifferenceDocument(
        kind=DifferenceKind.APPEARED,
        subject="rule ngram",
        field="",
        before=None,
        after=words,
        where=NOWHERE,
    )
    row = side_by_side(diff_document("a", "b", [found])).rows[0]

    assert row[-1].text.endswith("word …")
    assert row[0].detail == (
        ("appeared", "was not there"),
        ("before", "not there"),
        ("after", words),
    )


def test_legend_counts_the_differences_of_each_kind() -> None:
    """As many as there are of each kind stand in the legend, those that matter most first."""
    assert side_by_side(diff()).legend[:2] == ((Glyph.STRICTER, 4), (Glyph.BECAME_CONDITIONAL, 1))


def test_page_of_no_differences_says_so() -> None:
    """Where both sides are the same the page says which they are."""
    assert "Nothing differs between a and b." in page(diff_document("a", "b", ()), ())
