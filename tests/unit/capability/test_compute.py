from __future__ import annotations

import pytest

from backend_caps.capability.compute import ComputeRange


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
