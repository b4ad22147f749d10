import pytest

from tests.runtime.speculative.oracle import Targets, ask_transformers


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    """Ask transformers once for the tokens that every way of speculating has to give."""
    return ask_transformers(tmp_path_factory.mktemp("targets"))
