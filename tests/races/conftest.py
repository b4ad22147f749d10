from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.races.engine_setup import model_folder


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Write the model of all traces once."""
    with model_folder() as folder:
        yield folder
