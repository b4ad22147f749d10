"""The matrix: a cell for each backend and capability, and what it opens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from backend_caps.report.backends import ReportDocument, report_document
from backend_caps.report.html import grid
from backend_caps.report.html.grid import Cell, Glyph, Grid, Row, conditions_view, matrix
from backend_caps.report.sections import Table
from tests.unit.report import engine_scene, scene
from tests.unit.report.conftest import Golden

_PLACE = "fa3_caps.py:3"
_TEMPLATES = Path(grid.__file__).parent / "templates"


def _grid(*rows: Row) -> Grid:
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
        lines += ["", f"# {_written(row.head)}", *map(_written, row.cells)]
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
