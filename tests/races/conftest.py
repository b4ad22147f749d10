from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.races.engine_setup import model_folder


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Write the model of all traces once."""
    with model_folder() as folder:
        yield folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace no lines here: what these tests run is covered by others, and tracing doubles it."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.no_cover)
