import pytest

from tests.runtime.speculative.oracle import Targets, ask_transformers
from tests.runtime.speculative.redrafted import Models, write_models


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    """Ask transformers once for the tokens that every way of speculating has to give."""
    return ask_transformers(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Write a target and its drafts once."""
    return write_models(tmp_path_factory.mktemp("models"))
