from __future__ import annotations

import pytest

from backend_caps.capability.scale import ANY
from backend_caps.capability.sets import ComputeRange, Windows, overlap


@pytest.mark.parametrize(
    ("window", "inside"),
    [
        pytest.param(ComputeRange((9, 0)), [(9, 0), (9, 10), (10, 0)], id="open to the top"),
        pytest.param(
            ComputeRange((8, 9), (10, 0)), [(8, 9), (9, 0), (9, 10)], id="without its end"
        ),
        pytest.param(ComputeRange((9, 0), (9, 0)), [], id="empty"),
    ],
)
def test_window_holds_versions_by_number(
    window: ComputeRange, inside: list[tuple[int, int]]
) -> None:
    """A window holds what is from its start on and below its end, 9.10 above 9.9."""
    versions = [(8, 0), (8, 9), (9, 0), (9, 10), (10, 0)]

    held = [version for version in versions if version in window]

    assert held == inside


@pytest.mark.parametrize(
    ("window", "text"),
    [
        pytest.param(ComputeRange((9, 0)), ">= 9.0", id="open"),
        pytest.param(ComputeRange((8, 9), (10, 0)), ">= 8.9 and < 10.0", id="closed"),
    ],
)
def test_window_is_written_with_its_bounds(window: ComputeRange, text: str) -> None:
    """A window is written as the comparison that it makes."""
    written = str(window)

    assert written == text


_A = ComputeRange((8, 0), (9, 0))
_FROM_8, _FROM_10 = ComputeRange((8, 0)), ComputeRange((10, 0))


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        pytest.param((_A,), (_FROM_8,), (_A,), id="one in the other"),
        pytest.param(
            (ComputeRange((7, 5), (8, 9)),),
            (_A,),
            (ComputeRange((8, 0), (8, 9)),),
            id="one reaches into the other",
        ),
        pytest.param((_A,), (_FROM_10,), (), id="nothing"),
        pytest.param((_A,), (ComputeRange((9, 0)),), (), id="one ends where the other starts"),
        pytest.param((_FROM_10, _A), (_FROM_8,), (_A, _FROM_10), id="two windows, in order"),
        pytest.param(
            (_A, ComputeRange((8, 9), (9, 5))),
            (_FROM_8,),
            (ComputeRange((8, 0), (9, 5)),),
            id="windows that overlap are one",
        ),
        pytest.param(
            (_FROM_8, _A), (_FROM_8,), (_FROM_8,), id="a window in another is no window of its own"
        ),
        pytest.param((_A, ComputeRange((9, 0))), ANY, (_FROM_8,), id="windows that touch are one"),
        pytest.param((ComputeRange((9, 0), (9, 0)),), ANY, (), id="an empty window is none"),
        pytest.param(ANY, ANY, ANY, id="any"),
        pytest.param((), (_A,), (), id="none at all"),
    ],
)
def test_windows_join_to_what_they_share(one: Windows, other: Windows, shared: Windows) -> None:
    """Two lists of windows join to what both hold, whichever comes first."""
    joined = (overlap(one, other), overlap(other, one))

    assert joined == (shared, shared)
