from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _cache() -> Iterator[None]:
    """Keep what is compiled beside what is made by `make`, so that `make clean` takes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(Path(__file__).parents[3] / ".cache" / "triton"))
        yield
