from __future__ import annotations

from pathlib import Path

import pytest

from backend_caps.compatibility.comparison import Comparison
from tests.unit.compatibility import planted
from tests.unit.compatibility.planted import Plant, plants


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Compare the plugin with the engine before any change."""
    return planted.compared(planted.base(), tmp_path_factory.mktemp("before"))


def test_unedited_plugin_fits(before: Comparison) -> None:
    """The plugin as it stands fits the engine as it stands."""
    assert before.findings == []
    assert before.problems == []
    assert before.num_unreached == 1


@plants("breaks_calls", "breaks_supplied", "breaks_names")
def test_break_is_found_by_its_line(plant: Plant, before: Comparison, tmp_path: Path) -> None:
    """A change that breaks the plugin is found at the line that breaks, and nothing else."""
    comparison = planted.brought(plant, before, tmp_path)

    assert planted.found(comparison) == planted.expected(plant)


@plants("harmless_engine", "harmless_plugin")
def test_harmless_change_is_not_found(plant: Plant, before: Comparison, tmp_path: Path) -> None:
    """A change that the plugin survives is no finding."""
    comparison = planted.brought(plant, before, tmp_path)

    assert planted.found(comparison) == set()
