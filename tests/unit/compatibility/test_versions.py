"""What an engine's version and names decide of a plugin's conditions."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from backend_caps.compatibility.pair import Pair
from backend_caps.compatibility.places import Place
from tests.unit.compatibility.pairs import function_of, module_of, pair_of, place_of

ENGINE = {
    "__init__": "from .version import __version__",
    "version": """
        try:
            from ._version import __version__
        except ImportError:
            __version__ = "dev"
        """,
    "worker": "class Worker:\n    def step(self): self.num_steps = 1",
    "built": "from elsewhere import *",
}
BUILT = {**ENGINE, "_version": "__version__ = version = '1.2.0'"}
"""The engine with the file that a build writes, as in a wheel."""
IMPORTS = """
import engine
import importlib.metadata
import torch
from elsewhere import flag
from engine import __version__ as version_text, worker as w
from engine.version import __version__ as ENGINE_VERSION
from engine.worker import Worker
from importlib.metadata import version
from packaging.version import Version, parse
from typing import TYPE_CHECKING
"""


def _truth(
    test: str, before: str = "", *, engine: Mapping[str, str] = BUILT, version: str | None = "1.2.0"
) -> bool | None:
    """Decide a condition at the end of a module."""
    pair = pair_of(engine, {"m": f"{IMPORTS}\n{before}"}, version=version)
    return pair.conditions.truth(*place_of(pair, test))


VERSIONS = [
    "engine.__version__",
    "version_text",
    "Version(ENGINE_VERSION)",
    "version('engine')",
    "parse(importlib.metadata.version('engine'))",
    "Version(engine.__version__).base_version",
    "engine.__version__.split('+')[0]",
    "kept",
    "parsed",
    "local",
]
KEPT = """
kept = engine.__version__
parsed = Version(kept)
local = engine.__version__
local = Version(local)
"""
NO_VERSIONS = [
    "torch.__version__",
    "version('torch')",
    "Version(flag)",
    "engine.worker",
    "engine.__version__.split('.')[0]",
    "len(engine.__version__)",
    "unknown",
    "w",
    "text",
    "own",
    "parsed",
]


@pytest.mark.parametrize(
    "engine", [pytest.param(ENGINE, id="sdist"), pytest.param(BUILT, id="wheel")]
)
@pytest.mark.parametrize("words", VERSIONS)
def test_a_version_is_compared_however_it_is_had(words: str, engine: Mapping[str, str]) -> None:
    """The engine's version is an attribute, its metadata's, or a name that was given either."""
    assert _truth(f"{words} >= Version('1.2')", KEPT, engine=engine) is True
    assert _truth(f"{words} < '1.2'", KEPT, engine=engine) is False


@pytest.mark.parametrize("words", NO_VERSIONS)
def test_another_version_is_open(words: str) -> None:
    """What is not the engine's whole version is compared by running code alone."""
    before = "text = 'a'\nown = own\nparsed = Version(parsed)"

    assert _truth(f"{words} >= '1.2'", before) is None


COMPARISONS = [
    *[("==", False), ("!=", True), ("<", False), ("<=", False), (">", True), (">=", True)]
]


@pytest.mark.parametrize(("operator", "expected"), COMPARISONS)
def test_versions_are_compared_as_versions(operator: str, expected: bool) -> None:
    """As texts, 1.10 would be before 1.9."""
    assert _truth(f"engine.__version__ {operator} '1.9'", version="1.10") is expected


OPEN = [
    pytest.param("engine.__version__ >= '1.2'", None, id="the engine states no version"),
    pytest.param("engine.__version__ >= 'newest'", "1.2", id="no version"),
    pytest.param("engine.__version__ >= minimum", "1.2", id="a name"),
    pytest.param("engine.__version__ in ('1.2', '1.3')", "1.2", id="one of some"),
    pytest.param("'1.0' < engine.__version__ < '2.0'", "1.2", id="two comparisons"),
    pytest.param("engine_version_is(version)", "1.2", id="a function of a name"),
    pytest.param("torch_version_is('1.2')", "1.2", id="a function of another version"),
    pytest.param("subversion_is('1.2')", "1.2", id="a function of something else"),
]


@pytest.mark.parametrize(("test", "version"), OPEN)
def test_a_comparison_of_what_is_not_known_is_open(test: str, version: str | None) -> None:
    """Only running code knows what no text states."""
    assert _truth(test, version=version) is None


@pytest.mark.parametrize(
    "name", ["engine_version_is", "utils.version_is", "is_engine_version_eq", "_version_eq"]
)
def test_a_function_that_compares_versions_is_known_by_its_name(name: str) -> None:
    """Plugins call such a function `vllm_version_is`."""
    assert _truth(f"{name}('1.2.0')") is True
    assert _truth(f"{name}('1.3.0')") is False


ATTRIBUTES = [
    pytest.param("engine.worker, 'Worker'", True, id="a module's"),
    pytest.param("w, 'Gone'", False, id="a module's that is gone"),
    pytest.param("engine, 'worker'", True, id="a module of a package"),
    pytest.param("Worker, 'step'", True, id="a class's"),
    pytest.param("Worker, 'num_steps'", True, id="an instance's"),
    pytest.param("Worker, 'gone'", False, id="a class's that is gone"),
    pytest.param("engine.built, 'x'", None, id="a module's that stars may bring"),
    pytest.param("torch, 'x'", None, id="another package's"),
    pytest.param("worker(), 'x'", None, id="an object's"),
    pytest.param("Own, 'x'", None, id="the plugin's own"),
    pytest.param("worker, name", None, id="of a name"),
]


@pytest.mark.parametrize(("arguments", "expected"), ATTRIBUTES)
def test_an_attribute_is_looked_up_in_the_engine(arguments: str, expected: bool | None) -> None:
    """`hasattr` of a module or class of the engine holds where it has the attribute."""
    assert _truth(f"hasattr({arguments})", "class Own: ...") is expected


@pytest.mark.parametrize("test", ["TYPE_CHECKING", "typing.TYPE_CHECKING"])
def test_nothing_runs_for_type_checkers(test: str) -> None:
    """What stands under TYPE_CHECKING never runs."""
    assert _truth(test) is False


FLAGS = [
    pytest.param("FLAG = hasattr(engine, 'gone')", False, id="a call"),
    pytest.param("FLAG = not hasattr(engine, 'gone')", True, id="negated"),
    pytest.param("FLAG = engine.__version__ > '1' and hasattr(engine, 'worker')", True, id="and"),
    pytest.param("FLAG = OTHER\nOTHER = hasattr(engine, 'gone')", False, id="by another name"),
    pytest.param("FLAG = flag", None, id="imported"),
    pytest.param("FLAG = 1", None, id="a constant"),
    pytest.param("if flag:\n  FLAG = hasattr(engine, 'gone')\nelse:\n  FLAG = flag > 1", None,
                 id="of two values"),
    pytest.param("from elsewhere import *\nFLAG = FLAG and flag", None, id="of itself"),
    pytest.param("from elsewhere import *\nFLAG = FLAG and hasattr(engine, 'x')", False,
                 id="of itself, and what fails"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "expected"), FLAGS)
def test_a_flag_holds_where_the_condition_that_it_was_given_does(
    before: str, expected: bool | None
) -> None:
    """A name with one value, a condition, is as true as that."""
    assert _truth("FLAG", before) is expected


def test_a_flag_of_another_module_is_decided_there() -> None:
    """The names in a condition are those of the module that has it."""
    other = "import engine as e\nFLAG = hasattr(e, 'worker')"
    pair = pair_of(ENGINE, {"other": other, "m": "from plugin import other"})

    assert pair.conditions.truth(*place_of(pair, "other.FLAG")) is True


def test_a_flag_of_a_function_is_decided_in_it() -> None:
    """The names in a condition may be imported in a function."""
    text = """
    def register():
        import engine.worker as own
        is_new = hasattr(own, "Worker")
        return is_new
    """
    pair = pair_of(ENGINE, {"m": text})
    node, place = place_of(pair, "is_new")
    inside = Place(place.module, node, functions=(function_of(pair, "register").node,))

    assert pair.conditions.truth(node, inside) is True
    assert pair.conditions.truth(node, place) is None


IMPORTED = [
    pytest.param("import engine.worker", True, id="a module"),
    pytest.param("import engine.gone", False, id="one that is gone"),
    pytest.param("from engine.worker import Worker", True, id="a name"),
    pytest.param("from engine.worker import Worker, Gone", False, id="one of two is gone"),
    pytest.param("from engine.gone import Worker", False, id="its module is gone"),
    pytest.param("from engine.worker import *", True, id="all names"),
    pytest.param("from engine.built import x", None, id="one that stars may bring"),
    pytest.param("import torch\nimport engine.gone", False, id="another's, and one that is gone"),
    pytest.param("import torch\nimport engine.worker", None, id="another's"),
    pytest.param("from . import own", None, id="the plugin's own"),
    pytest.param("x = 1\nfrom engine import worker", True, id="among others"),
    pytest.param("x = 1", None, id="nothing is imported"),
]


@pytest.mark.parametrize(("body", "expected"), IMPORTED)
def test_imports_hold_where_the_engine_has_all_that_they_name(
    body: str, expected: bool | None
) -> None:
    """One lost name loses them; one of another package leaves them open."""
    pair = pair_of(ENGINE, {"m": body})

    assert _hold(pair) is expected


def _hold(pair: Pair) -> bool | None:
    module = module_of(pair)
    return pair.conditions.imports_hold(module.tree.body, Place(module, ast.Pass()))
