"""What torch's modules and tensors have, for a program that is interpreted."""

from __future__ import annotations

from backend_caps.engines.source.interpreter import Interpreter
from backend_caps.engines.source.library import library
from backend_caps.engines.source.uncertainty import has_unknown
from backend_caps.engines.source.values import Native, Unknown
from backend_caps.engines.surroundings import Dtype
from backend_caps.engines.torch_modules import torch_modules
from tests.unit.engines.source.trees import index_of


def _run(code: str) -> Native:
    names = {"torch.float16": Dtype("float16"), **torch_modules()}
    run = Interpreter(index_of(m=code), {**library({}), **names})
    return run.call(run.found("engine.m.f"))


def test_modules_have_their_attributes_and_no_others() -> None:
    """A program asks whether a class has an attribute, and torch's has none of its own."""
    found = _run("""
        from torch import nn

        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(2, 2)
                self.register_buffer("scale", None, persistent=False)

        def f():
            own = Own()
            return (hasattr(own, "inner"), hasattr(own, "no_such"), getattr(Own, "is_pooling", False), own.scale,
                    issubclass(Own, nn.Module), isinstance(own.inner, nn.Module), callable(own.forward)), own(3)
    """)

    assert found[0][:6] == (True, False, False, None, True, True)
    assert has_unknown(found[0][6])
    assert isinstance(found[1], Unknown)


def test_modules_list_those_within_them() -> None:
    """Each once, with those of lists and mappings."""
    found = _run("""
        import torch
        from torch import nn

        class Own(nn.Module):
            def __init__(self):
                self.layers = torch.nn.ModuleList([nn.SiLU() for _ in range(2)])
                self.again = self.layers
                self.named = nn.ModuleDict({"a": nn.GELU()})
                self.empty = nn.ModuleList()

        def f():
            own = Own()
            own.layers.append(nn.Identity())
            own.layers[0] = nn.Embedding(2, 2)
            kinds = [type(each).__name__ for each in own.modules()]
            return (sorted(kinds), len(own.layers), type(own.layers[0]).__name__, [*own.empty],
                    [type(each).__name__ for each in own.layers], [name for name, _ in own.named_children()],
                    len(own.children()), "a" in own.named)
    """)

    kinds = ["Embedding", "GELU", "Identity", "ModuleDict", "ModuleList", "ModuleList", "Own"]
    assert found[0] == sorted([*kinds, "SiLU"])
    assert found[1:4] == (3, "Embedding", [])
    assert found[4] == ["Embedding", "SiLU", "Identity"]
    assert found[5:] == (["layers", "again", "named", "empty"], 4, True)


def test_modules_of_an_unknown_number_are_unknown() -> None:
    """What is appended to them is lost."""
    found = _run("""
        import torch

        def f():
            many = torch.nn.ModuleList(torch.somewhere())
            many.append(torch.nn.SiLU())
            return [each for each in many], list(many.parameters())
    """)

    assert has_unknown(found)


def test_tensors_have_a_shape_and_what_is_set_on_them() -> None:
    """No element exists; a parameter of something unknown is a tensor of unknown shape."""
    found = _run("""
        import torch

        def f():
            sized = torch.empty(2, 3, dtype=torch.float16)
            full = torch.full((4,), 1.0)
            weight = torch.nn.Parameter(sized, requires_grad=False)
            weight.loader = "own"
            other = torch.nn.Parameter(torch.somewhere())
            made = torch.tensor([1, 2], dtype=torch.float16)
            return ([sized.shape, full.shape, weight.shape, weight.loader, made.element_size(), made.shape,
                     torch.tensor(3).shape, torch.nn.Parameter(data=full).shape, other is None],
                    [other.shape, weight.grad, torch.tensor(3).element_size(), sized.dtype])
    """)

    known = [(2, 3), (4,), (2, 3), "own", 2, (2,), (), (4,), False]
    assert found[0] == known
    assert all(isinstance(each, Unknown) for each in found[1][:3])
    assert str(found[1][3]) == "torch.float16"
