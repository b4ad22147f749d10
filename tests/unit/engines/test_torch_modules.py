"""What torch's modules and tensors have, for a program that is interpreted."""

from __future__ import annotations

from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.uncertainty import has_unknown
from backend_caps.engines.source.values import Native, Unknown
from backend_caps.engines.surroundings import Dtype
from backend_caps.engines.torch_modules import torch_modules
from tests.unit.engines.source.trees import index_of
from tests.unit.engines.tables import data

_PROGRAMS = data("library_programs")


def _run(name: str) -> Native:
    names = {"torch.float16": Dtype("float16"), **torch_modules()}
    run = Interpreter(index_of(m=_PROGRAMS[name]), {**library({}), **names})
    return run.call(run.found("engine.m.f"))


def test_modules_have_their_attributes_and_no_others() -> None:
    """A program asks whether a class has an attribute, and torch's has none of its own."""
    found = _run("torch_modules_have_their_attributes_and_no_others")

    assert found[0][:6] == (True, False, False, None, True, True)
    assert has_unknown(found[0][6])
    assert isinstance(found[1], Unknown)


def test_modules_list_those_within_them() -> None:
    """Each once, with those of lists and mappings."""
    found = _run("torch_modules_list_those_within_them")

    kinds = ["Embedding", "GELU", "Identity", "ModuleDict", "ModuleList", "ModuleList", "Own"]
    assert found[0] == sorted([*kinds, "SiLU"])
    assert found[1:4] == (3, "Embedding", [])
    assert found[4] == ["Embedding", "SiLU", "Identity"]
    assert found[5:] == (["layers", "again", "named", "empty"], 4, True)


def test_modules_of_an_unknown_number_are_unknown() -> None:
    """What is appended to them is lost."""
    found = _run("torch_modules_of_an_unknown_number_are_unknown")

    assert has_unknown(found[:2])
    assert found[2] == 1


def test_tensors_have_a_shape_and_what_is_set_on_them() -> None:
    """No element exists; what is computed of a number and a tensor has the shape of the tensor."""
    found = _run("torch_tensors_have_a_shape_and_what_is_set_on_them")

    known = [(2, 3), (4,), (2, 3), "own", 2, (2,), (), (4,), False]
    assert found[0] == known
    assert all(isinstance(each, Unknown) for each in found[1][:3])
    assert str(found[1][3]) == "torch.float16"
    assert found[2][:3] == [(2, 3), (2, 3), (4,)]
    assert isinstance(found[2][3], Unknown)
