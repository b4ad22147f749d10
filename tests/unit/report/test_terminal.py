"""Sections on terminals that are narrow or lack characters, and the words for values."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from backend_caps.report.plans import CauseDocument, ValueDocument
from backend_caps.report.sections import Heading, Lines, Section, Table
from backend_caps.report.terminal import show
from backend_caps.report.words import decided_by, file_of, place_of, places_of, words_of
from backend_caps.resolution.engine import option_of
from backend_caps.resolution.flags import ServerFlags

_NARROW = 80
_BOLD = re.compile(r"\x1b\[[0-9;]*m")
_WORD = st.text("abcdef_", min_size=1, max_size=20)
_FLAGS = [option_of(name) for name in ServerFlags.model_fields]
_CELLS = st.lists(_WORD, max_size=4).map(" ".join)
_NAMES = st.lists(st.text("ghijkl_", min_size=1, max_size=20), max_size=2)
_LAST = f"a {'a' * 8} {'a' * 11}"
_FULL = Table(
    ("", "g", "", "", "g" * 14, "", "g" * 16, "", ""),
    (
        ("a", "", "a" * 6, "a" * 10, "", "aaa", "aaa aaaaa aaaaaaaa", "", _LAST),
        ("a" * 11, "", "", "", "", "", "", f"a {'b' * 20}", ""),
    ),
)
"""The words have just as much room as they need."""


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Draw tables with a name in the first column, and more of them than fit side by side."""
    columns = tuple(draw(st.lists(_NAMES.map(" ".join), min_size=1, max_size=9)))
    rows = tuple(draw(st.lists(st.tuples(_WORD, *(_CELLS for _ in columns[1:])), max_size=4)))
    return Table(columns, rows, draw(st.sampled_from(["sentences", "names"])))


def _drawn(section: Section, *, encoding: str = "utf-8", width: int = _NARROW) -> str:
    """Draw on a terminal of these columns and characters, which takes no others."""
    with pytest.MonkeyPatch.context() as patch:
        taken = io.BytesIO()
        out = io.TextIOWrapper(taken, encoding=encoding, errors="strict")
        patch.setattr("sys.stdout", out)
        patch.setenv("FORCE_COLOR", "1")
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(width))
        show([section])
        out.flush()
        return _BOLD.sub("", taken.getvalue().decode(encoding))


@settings(deadline=None, max_examples=60)
@given(table=tables())
def test_table_is_no_wider_than_the_terminal(table: Table) -> None:
    """However many columns there are, no line has more than there is room for."""
    lines = _drawn(table).splitlines()

    assert [line for line in lines if len(line) > _NARROW] == []


@settings(deadline=None, max_examples=60)
@given(table=tables())
@example(table=_FULL)
def test_every_word_of_a_table_is_shown_whole(table: Table) -> None:
    """Words as long as capabilities have are neither broken nor cut off."""
    words = _drawn(table).split()

    missing = {word for row in table.rows for cell in row for word in cell.split()} - {*words}

    assert missing == set()


@pytest.mark.parametrize("said", ["{}.", "({})"])
@pytest.mark.parametrize("flag", _FLAGS)
def test_flag_is_whole_beside_other_columns(flag: str, said: str) -> None:
    """What is typed as it stands is not broken where another column has room to give."""
    word = said.format(flag)
    table = Table(
        ("capability", "becomes", "all of"),
        (("host_seq_lens", "upper_bound", f"Add {word} Set --attention-backend triton."),),
    )

    assert word in _drawn(table, width=60).split()


def test_long_name_is_whole_where_there_is_room() -> None:
    """The name of a class is not broken beside columns that have room to give."""
    name = "TritonMultiStepDraftBackend"
    table = Table(("server", "effect", "decided by"), (("a", "no effect " * 9, f"backend {name}"),))

    assert name in _drawn(table, width=60).split()


def test_no_column_goes_below_for_a_long_name() -> None:
    """Where it has no room beside the others, a name of more than twenty letters is broken."""
    table = Table(("a", "b", "c", "d"), (("a", "b" * 30, "c" * 14, "d" * 14),))

    lines = _drawn(table, width=62).splitlines()

    assert sum("a" in line.split() for line in lines) == 2


def test_longer_name_of_a_first_column_loses_nothing() -> None:
    """A name that has no room is folded, its line number included, and not cut off."""
    place = f"{'a' * 40}.py:1234"
    table = Table(("class", "b", "c"), ((place, "b " * 20, "c " * 20),), "names")

    cells = [line.split()[0] for line in _drawn(table).splitlines() if "a" in line or "4" in line]

    assert "".join(cells).removeprefix("class") == place


def test_table_without_room_goes_on_below() -> None:
    """What does not fit beside the first column comes under it, with the first column again."""
    table = Table(("backend", "one", "other"), (("fa3", "a" * 20, "b" * 20),))

    lines = [line.split() for line in _drawn(table, width=40).splitlines() if line.strip()]

    assert [line for line in lines if len(line) > 1] == [
        ["backend", "one"],
        ["fa3", "a" * 20],
        ["backend", "other"],
        ["fa3", "b" * 20],
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_terminal_without_box_characters_has_hyphens(encoding: str) -> None:
    """A table's line is of what every encoding has, and its columns stay where they were."""
    table = Table(("step", "took"), (("1", "ok"),))

    plain, full = _drawn(table, encoding=encoding), _drawn(table)

    assert plain == full.replace("─", "-")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        pytest.param("held ✓, failed ✗", "held +, failed x", id="marks"),
        pytest.param("12 µs → 3 …", "12 us -> 3 ...", id="units and arrows"),
        pytest.param("größe", "gr\\xf6\\xdfe", id="a plugin's own letters"),
    ],
)
def test_sign_that_is_not_there_has_a_plain_one(text: str, written: str) -> None:
    """In ASCII, our own signs are others; what a plugin says is escaped, never lost."""
    assert _drawn(Lines((text,)), encoding="ascii") == f"{written}\n"


def test_sign_that_is_there_stays() -> None:
    """Only what an encoding lacks is written otherwise."""
    assert _drawn(Heading("3 µs, größe"), encoding="latin-1") == "\n3 µs, größe\n"


def _cause(
    name: str = "fa3",
    value: JsonValue = "exact",
    *,
    role: str | None = "target",
    phase: str | None = "decode",
    rank: int | None = None,
) -> CauseDocument:
    return CauseDocument(
        kind="backend",
        name=name,
        role=role,
        phase=phase,
        value=value,
        reason="why",
        origin="declared",
        source=None,
        rank=rank,
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(None, "no limit", id="null"),
        pytest.param(True, "yes", id="true"),
        pytest.param(False, "no", id="false"),
        pytest.param(8, "8", id="a number"),
        pytest.param("in_graph", "in_graph", id="a level"),
        pytest.param([], "none", id="nothing"),
        pytest.param(["mixed_batch", "uniform_batch"], "mixed_batch, uniform_batch", id="some"),
        pytest.param({"exact": 64}, "64", id="one size"),
        pytest.param({"multiple_of": 16}, "multiples of 16", id="multiples"),
        pytest.param({"one_of": [64, 128]}, "one of 64, 128", id="a few sizes"),
        pytest.param({"unchecked": "any"}, "not checked; within any", id="unchecked"),
        pytest.param(
            {"unchecked": {"multiple_of": 16}},
            "not checked; within multiples of 16",
            id="partly checked",
        ),
        pytest.param({"conflict": ["fa3", "mla"]}, "conflict: fa3, mla", id="a conflict"),
    ],
)
def test_words_of_writes_each_kind_of_value(value: JsonValue, words: str) -> None:
    """A document's value has the words that people read."""
    assert words_of(value) == words


@pytest.mark.parametrize(
    ("cause", "place"),
    [
        pytest.param(_cause(), "target decode", id="role and phase"),
        pytest.param(_cause(rank=0), "target decode rank 0", id="with its rank"),
        pytest.param(_cause(role=None), "decode", id="of a phase alone"),
        pytest.param(_cause(role=None, phase=None), "", id="nowhere"),
    ],
)
def test_place_of_says_where_a_cause_stands(cause: CauseDocument, place: str) -> None:
    """A cause stands in a role, a phase and a rank, as far as it has them."""
    assert place_of(cause) == place


def test_places_of_names_each_place_once() -> None:
    """Causes in one place are one place; what has none is left out."""
    causes = [_cause(), _cause(role=None, phase=None), _cause(phase="verify"), _cause()]

    assert places_of(causes) == "target decode, target verify"


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        pytest.param([], "nothing", id="no cause"),
        pytest.param([_cause()], "backend fa3", id="everywhere it is used"),
        pytest.param(
            [_cause(), _cause(phase="verify", value="none")],
            "backend fa3 (target decode)",
            id="in one of its places",
        ),
        pytest.param(
            [_cause(), _cause("mla"), _cause("triton", "none")],
            "backend fa3; backend mla",
            id="two of three",
        ),
        pytest.param(
            [_cause(value="none"), _cause("mla", "upper_bound")],
            "backend fa3; backend mla",
            id="none alone gives the value",
        ),
    ],
)
def test_decided_by_names_who_holds_the_value(causes: list[CauseDocument], words: str) -> None:
    """Whoever has the value is named once; with places, where it has another value elsewhere."""
    assert decided_by(ValueDocument(value="exact", effect="", causes=causes)) == words


@pytest.mark.parametrize(
    ("place", "short"),
    [
        pytest.param("fa3-caps 1.0, /a/b/fa3_caps.py:3", "fa3-caps 1.0, fa3_caps.py:3", id="path"),
        pytest.param("fa3-caps 1.0, C:\\a\\fa3.py:3", "fa3-caps 1.0, fa3.py:3", id="Windows path"),
        pytest.param("/a/b/fa3_caps.py:3", "fa3_caps.py:3", id="path alone"),
        pytest.param("by hand", "by hand", id="no path"),
    ],
)
def test_file_of_shortens_a_path_to_its_name(place: str, short: str) -> None:
    """People read the file's name; the document holds the whole path."""
    assert file_of(place) == short
