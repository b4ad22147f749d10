"""What vLLM's source sees of packages, of a model's configuration, and of its own files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backend_caps.capability.gpu import gpus
from backend_caps.engines.source.files import Tree
from backend_caps.engines.source.index import Index
from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.uncertainty import has_unknown
from backend_caps.engines.source.values import Native, Unknown
from backend_caps.engines.surroundings import Dtype
from backend_caps.engines.vllm.surroundings import surroundings
from tests.unit.engines.tables import data

_MODELS: Mapping[str, Mapping[str, object]] = {
    "llama": {"model_type": "llama", "dtype": "bfloat16", "quantization_config": {"bits": 8}},
    "whole": {"model_type": "own", "_complete": True, "text_config": {"torch_dtype": "half"}},
    "other": {"model_type": "of-nobody"},
    "remote": {"model_type": "llama", "auto_map": {"AutoConfig": "own.Config"}},
    "ours": {"model_type": "ours", "size": 3, "dtype": "bfloat16"},
}
_PROGRAMS = data("library_programs")


def _run(name: str, *requires: str, version: str | None = "0.33.0") -> Native:
    files = {"vllm/m.py": _PROGRAMS[name].encode(), "vllm/other.py": b"", "vllm/__init__.py": b""}
    tree = Tree(package="vllm", version=version, source="test", files=files)
    tree.requires = requires or None
    index = Index(tree)
    names = surroundings(index, gpus()["H100"], 2, _MODELS.get)
    run = Interpreter(index, {**library({}), **names})
    return run.call(run.found("vllm.m.f"))


@pytest.mark.parametrize(
    ("requires", "there", "has_nope"),
    [
        (("flashinfer-python==0.7.2.post1", 'ray; extra == "ray"'), [False, True], True),
        (("flashinfer-python==0.6.8", "ray>=2"), [True, True], False),
    ],
)
def test_packages_are_those_that_vllm_requires(
    requires: tuple[str, ...], there: list[bool], *, has_nope: bool
) -> None:
    """Of others that it uses, an installation of vLLM alone has none; the rest is not known.

    A module of vLLM's own that is not in its source is not there.
    """
    found = _run("packages", *requires)

    assert found[:4] == ([*there, True, True, True], there[0], "0.33.0", has_nope)
    assert found[4:8] == (True, True, 2, True)
    assert found[8] is False
    assert all(isinstance(each, Unknown) for each in found[9:])


@pytest.mark.parametrize(
    ("requires", "has"),
    [
        pytest.param(("flashinfer-python==0.7.2.post1",), [True, True], id="a release that has"),
        pytest.param(("flashinfer-python==0.6.12",), [None, None], id="an older release"),
        pytest.param((), [None, None], id="no metadata"),
    ],
)
def test_functions_of_flashinfer_are_those_of_the_pinned_release(
    requires: tuple[str, ...], has: list[bool | None]
) -> None:
    """They are callable where a wheel was seen to have them; what they return is not known."""
    *found, result = _run("vllm_functions_of_flashinfer", *requires)

    assert [None if isinstance(each, Unknown) else each for each in found] == has
    assert isinstance(result, Unknown)


def test_packages_are_not_known_without_metadata() -> None:
    """A folder of source states no requirements."""
    found = _run("packages", version=None)

    assert [isinstance(each, Unknown) for each in found[0]] == [True, True, False, False, False]
    assert found[2] == "0"
    assert isinstance(found[3], Unknown)


def test_configuration_is_what_transformers_makes_of_the_file() -> None:
    """Dtypes are torch's, in its parts too; a class that vLLM registers is constructed."""
    found = _run("vllm_configuration_is_what_transformers_makes_of_the_file")

    known = [
        True,
        True,
        6,
        True,
        4,
        "own",
        {},
        ["config.json"],
        False,
        "llama",
        None,
        "llama",
        "llama",
        None,
    ]
    assert found[0][0] == known
    assert all(map(has_unknown, found[0][1]))
    assert found[1] == Dtype("bfloat16")


def test_configuration_of_a_layer_has_its_own_values() -> None:
    """A class of transformers makes it of values too, where they are of its type."""
    known, unknown = _run("vllm_configuration_of_a_layer_has_its_own_values")

    assert known == ([256] * 5 + [512], *(True, False, 32, 4096, False, True, True, 7, False))
    assert all(isinstance(each, Unknown) for each in unknown)


def test_parts_of_a_server_that_compute_are_left_out() -> None:
    """Decorators leave functions as they are; what is loaded lazily is a module."""
    found = _run("vllm_parts_of_a_server_that_compute_are_left_out")

    assert found[0] == ["vllm.other", "Plain", "With", [True, True], True]
    assert isinstance(found[1], Unknown)
