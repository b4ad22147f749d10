"""The matrix: a cell for each backend and capability, and what it opens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.html import grid
from backend_caps.report.html.grid import Cell, Glyph, Grid, Row, conditions_view, matrix
from backend_caps.report.sections import Table
from tests.unit.report import engine_scene, scene

_PLACE = "fa3_caps.py:3"
_TEMPLATES = Path(grid.__file__).parent / "templates"


def _grid(*rows: Row) -> Grid:
    return Grid(
        caption="a",
        counted="rows",
        sought="words",
        seeks="rows",
        corner="a",
        columns=("b", "c"),
        rows=rows,
    )


def _engine() -> ReportDocument:
    reading = engine_scene.SGLANG
    return report_document(reading.backends, (), None, reading=reading)


def _cell(grid: Grid, name: str, capability: str) -> Cell:
    row = next(row for row in grid.rows if row.head.text == name)
    return row.cells[grid.columns.index(capability)]


@pytest.mark.parametrize(
    ("backend", "capability", "told"),
    [
        pytest.param("fa3", "page_sizes", ("multiples of 16", Glyph.DECLARED), id="declared"),
        pytest.param("fa3", "host_seq_lens", ("none", Glyph.CONDITIONAL), id="conditional"),
        pytest.param("unsaid", "page_sizes", ("", Glyph.UNDECLARED), id="undeclared"),
        pytest.param("torn", "page_sizes", ("", Glyph.BROKEN), id="broken"),
        pytest.param("old", "page_sizes", ("", Glyph.SKIPPED), id="skipped"),
    ],
)
def test_cell_has_the_shape_of_its_origin(
    backend: str, capability: str, told: tuple[str, Glyph]
) -> None:
    """A cell tells how its value came to be, and nothing where there is none."""
    cell = _cell(matrix(scene.report(None)), backend, capability)

    assert (cell.text, cell.glyph) == told


@pytest.mark.parametrize(
    ("backend", "capability", "mark"),
    [
        pytest.param("fa3", "host_seq_lens", Glyph.VERIFIED, id="verified"),
        pytest.param("fa3", "page_sizes", Glyph.FAILED, id="failed"),
        pytest.param("triton", "host_seq_lens", Glyph.STALE, id="stale"),
        pytest.param("fa3", "head_sizes", None, id="not checked"),
        pytest.param("hybrid", "two_batch_overlap", None, id="no evidence"),
    ],
)
def test_cell_has_the_mark_of_its_evidence(
    backend: str, capability: str, mark: Glyph | None
) -> None:
    """A value that the kit looked at says how that went."""
    cell = _cell(matrix(scene.verified()), backend, capability)

    assert cell.mark is mark


def test_cell_opens_its_evidence() -> None:
    """What was not checked says so where it is opened."""
    cell = _cell(matrix(scene.verified()), "fa3", "head_sizes")

    assert cell.detail == (
        ("value", "one of 64, 128"),
        ("origin", "declared: the backend states it"),
        ("evidence", "not checked"),
    )


def test_head_opens_what_speaks_against_a_backend() -> None:
    """A backend's name opens when it was checked, and what has changed since."""
    row = next(row for row in matrix(scene.verified()).rows if row.head.text == "triton")

    told = dict(row.head.detail)
    assert told["checked"] == "2026-11-22 on sim, 2 seeds, by backend-caps 1.0, torch 2.13.0"
    assert told["what speaks against it"].startswith("failed: check-races; torch was 2.13.0")


def test_head_opens_what_makes_a_backend_an_engines_own() -> None:
    """A backend's name opens its adapters, one an engine."""
    row = next(row for row in matrix(scene.report(None)).rows if row.head.text == "triton")

    assert row.head.detail[-2:] == (
        ("becomes a backend of sglang by", "acme_sglang:make"),
        ("becomes a backend of vllm by", "acme_vllm:Acme"),
    )


def test_head_opens_what_is_wrong() -> None:
    """A backend that was not read has its status's shape, and opens the problem."""
    row = next(row for row in matrix(scene.report(None)).rows if row.head.text == "torn")

    assert (row.head.glyph, row.head.detail[-1]) == (
        Glyph.BROKEN,
        ("problem raises", "torn_caps raises KeyError while it is imported. Repair it."),
    )


def test_matrix_has_no_column_that_says_nothing() -> None:
    """What none of the backends states would be a column of empty rings."""
    grid = matrix(scene.report(None))

    assert {"deterministic", "batch_invariant", "auto_priority"}.isdisjoint(grid.columns)


def test_class_of_an_engine_is_known_by_the_names_of_flags() -> None:
    """An engine's class has below it the names it is registered as, and its file."""
    heads = {row.head.text: row.head.note for row in matrix(_engine()).rows}

    assert (heads["FlashAttentionBackend"], heads["TornBackend"]) == (
        "fa3, fa4\nflashattention_backend.py:132",
        "",
    )


def test_cell_of_an_engine_opens_the_sources_words() -> None:
    """What was read of a source is quoted with its place, and with the class that states it."""
    cell = _cell(matrix(_engine()), "TritonMultiStepDraftBackend", "host_seq_lens")

    assert (cell.glyph, cell.detail[-3:]) == (
        Glyph.INHERITED,
        (
            ("the source says", "needs_cpu_seq_lens = False"),
            ("stated at", "sglang/srt/layers/attention/triton_backend.py:153"),
            ("inherited from", "TritonAttnBackend"),
        ),
    )


def test_value_of_conditions_alone_depends() -> None:
    """Where only conditions state a value, the cell says that it depends."""
    cell = _cell(matrix(_engine()), "FlashAttentionBackend", "host_seq_lens")

    assert (cell.text, cell.glyph) == ("depends", Glyph.CONDITIONAL)


def test_names_of_an_engine_have_no_rows() -> None:
    """A name says what its classes say, and is not repeated."""
    heads = [row.head.text for row in matrix(_engine()).rows]

    assert "flashinfer" not in heads


def test_head_of_a_class_opens_its_other_attributes() -> None:
    """An engine's own flags that are no capability stand behind the class's name."""
    row = next(row for row in matrix(_engine()).rows if row.head.text == "TritonAttnBackend")

    assert ("attribute label", "label = 'tri'") in row.head.detail


def test_conditions_are_listed_for_paper() -> None:
    """What a click would open is a table too, with the place of each condition."""
    _, table = conditions_view(scene.report(None))

    assert isinstance(table, Table)
    assert [(*row[:4], row[5]) for row in table.rows] == [
        ("fa3", "host_seq_lens", "exact", "phase = decode and kv_cache_dtype = fp8_e5m2", _PLACE)
    ]


def test_no_conditions_are_no_table() -> None:
    """Where nothing depends there is no heading either."""
    report = scene.report(None).model_copy(update={"backends": []})

    assert list(conditions_view(report)) == []


def test_same_details_are_written_once() -> None:
    """A page of many backends does not repeat what is the same behind their cells."""
    cell = Cell(text="yes", detail=(("origin", "declared"),))
    row = Row(head=Cell(text="a", detail=(("status", "ok"),)), cells=(cell, cell))

    data = _grid(row, row).data()

    assert data == {
        "details": [[["status", "ok"]], [["origin", "declared"]]],
        "rows": [[0, 1, 1], [0, 1, 1]],
        "orders": [[], [], []],
    }


def test_legend_has_each_shape_once_in_its_order() -> None:
    """A legend explains what is shown, and no more."""
    failed = Cell(text="no", glyph=Glyph.DECLARED, mark=Glyph.FAILED)
    row = Row(head=Cell(text="a", glyph=Glyph.BROKEN), cells=(failed, failed))

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
