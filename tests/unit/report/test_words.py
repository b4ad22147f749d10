from __future__ import annotations

import pytest
from pydantic import JsonValue

from backend_caps.report.plans import CauseDocument, ValueDocument
from backend_caps.report.words import decided_by, file_of, place_of, places_of, words_of


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
    written = words_of(value)

    assert written == words


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
    written = place_of(cause)

    assert written == place


def test_places_of_names_each_place_once() -> None:
    """Causes in one place are one place; what has none is left out."""
    causes = [_cause(), _cause(role=None, phase=None), _cause(phase="verify"), _cause()]

    written = places_of(causes)

    assert written == "target decode, target verify"


@pytest.mark.parametrize(
    ("causes", "words"),
    [
        pytest.param([], "nobody", id="no cause"),
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
    value = ValueDocument(value="exact", effect="", causes=causes)

    written = decided_by(value)

    assert written == words


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
    written = file_of(place)

    assert written == short
