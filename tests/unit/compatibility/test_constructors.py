"""What the call of a class takes, compared with Python's own answer."""

from __future__ import annotations

import inspect
from textwrap import dedent
from typing import Any

import pytest

from backend_caps.compatibility.constructors import constructor_of
from tests.unit.compatibility.pairs import class_of, pair_of

IMPORTS = """
import abc, dataclasses, typing
from abc import ABC
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar
T = TypeVar("T")
"""


def _taken(text: str, **others: str) -> str | None:
    """Write what the class A of a module takes; None where the source does not tell."""
    pair = pair_of({}, {"m": f"{IMPORTS}\n{dedent(text)}", **others})
    signature = constructor_of(pair, class_of(pair, "A"))
    return None if signature is None else str(signature)


TOLD = [
    pytest.param("class A: ...", id="no constructor"),
    pytest.param("class A:\n  def __init__(self, a, b=1, *args, c, **kwargs): ...", id="its own"),
    pytest.param("class B:\n  def __init__(self, a): ...\nclass A(B): ...", id="its base's"),
    pytest.param(
        "class B:\n  def __init__(self, a): ...\nclass C:\n  def __init__(self, c): ...\n"
        "class A(C, B): ...", id="its first base's",
    ),
    pytest.param("class B(ABC):\n  def __init__(self, a): ...\nclass A(B, Generic[T]): ...",
                 id="bases of Python's that have none"),
    pytest.param("class A(ABC): ...", id="an abstract class"),
    pytest.param("@dataclass\nclass A:\n  a: int\n  b: int = 1", id="fields"),
    pytest.param("@dataclasses.dataclass(frozen=True)\nclass A:\n  a: int", id="with options"),
    pytest.param("@dataclass\nclass A:\n  a: int\n  b = 1\n  def c(self): ...", id="no fields"),
    pytest.param("@dataclass\nclass A:\n  a: ClassVar[int] = 1\n  b: InitVar[int]",
                 id="of the class, and of the call"),
    pytest.param("@dataclass(kw_only=True)\nclass A:\n  a: int\n  b: int = 1", id="by name"),
    pytest.param("@dataclass(kw_only=False)\nclass A:\n  a: int", id="by position too"),
    pytest.param("@dataclass\nclass A:\n  a: int = 1\n  _: KW_ONLY\n  b: int\n  c: int = 2",
                 id="by name from here on"),
    pytest.param(
        "@dataclass\nclass A:\n  a: int = field(kw_only=True)\n  b: int\n"
        "  c: int = field(default=1, kw_only=False)", id="one by name",
    ),
    pytest.param("@dataclass(kw_only=True)\nclass A:\n  a: int\n  b: int = field(kw_only=False)",
                 id="all but one by name"),
    pytest.param(
        "@dataclass\nclass A:\n  a: list = field(default_factory=list)\n"
        "  b: int = field(default=1, repr=False)\n  c: int = field(init=False)",
        id="settings of fields",
    ),
    pytest.param(
        "@dataclass\nclass B:\n  a: int\n  b: int\n@dataclass\nclass A(B):\n  c: int\n  a: float",
        id="fields of a base, one defined again",
    ),
    pytest.param("@dataclass\nclass B:\n  a: int\nclass A(B):\n  c: int", id="a plain subclass"),
    pytest.param(
        "@dataclass\nclass B:\n  b: int\n@dataclass\nclass C:\n  c: int\nclass A(C, B): ...",
        id="a plain subclass of two: of the first alone",
    ),
    pytest.param("class B:\n  b: int\n@dataclass\nclass A(B):\n  a: int", id="a plain base"),
    pytest.param("@dataclass\nclass A:\n  a: int\n  def __init__(self, x): ...",
                 id="a dataclass with its own"),
    pytest.param("@dataclass(init=False)\nclass A:\n  a: int", id="a dataclass that makes none"),
    pytest.param("@dataclass\nclass B:\n  a: int\n@dataclass(init=False)\nclass A(B):\n  b: int",
                 id="a base of one that makes none"),
]  # fmt: skip


@pytest.mark.parametrize("text", TOLD)
def test_a_class_takes_what_python_says(text: str) -> None:
    """Parameters come in Python's order, with their kinds and whether they have defaults."""
    scope: dict[str, Any] = {"__name__": "m"}
    exec(compile(f"{IMPORTS}\n{text}", "m", "exec", dont_inherit=True), scope)  # noqa: S102
    own = inspect.signature(scope["A"]).parameters.values()
    expected = inspect.Signature([*map(_written, own)])

    assert _taken(text) == str(expected)


def _written(parameter: inspect.Parameter) -> inspect.Parameter:
    """Leave out what a signature here does not show: the type, and which default."""
    has_default = parameter.default is not parameter.empty
    default = _Default() if has_default else parameter.empty
    return parameter.replace(annotation=parameter.empty, default=default)


class _Default:
    def __repr__(self) -> str:
        return "…"


NOT_TOLD = [
    pytest.param("class A(metaclass=Meta): ...", id="a metaclass makes the instances"),
    pytest.param("class A:\n  def __new__(cls, a): ...", id="it makes its instances itself"),
    pytest.param("import torch\nclass A(torch.Tensor): ...", id="a base outside of both"),
    pytest.param("class A(typing.NamedTuple):\n  a: int", id="a base that makes a constructor"),
    pytest.param("class A(make_base()): ...", id="a base that is made"),
    pytest.param("class A:\n  @unknown\n  def __init__(self, a): ...", id="a decorated one"),
    pytest.param("@unknown\nclass A: ...", id="a decorator that may give one"),
    pytest.param("@unknown\nclass B: ...\nclass A(B): ...", id="a decorated base"),
    pytest.param("import torch\n@dataclass\nclass A(torch.Output):\n  a: int",
                 id="fields of a base outside of both"),
    pytest.param("@dataclass\nclass A(make_base()):\n  a: int", id="fields of a base that is made"),
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_TOLD)
def test_a_class_takes_what_only_running_code_knows(text: str) -> None:
    """Where the source does not tell, nothing is said."""
    assert _taken(text) is None


def test_a_module_of_torch_has_the_constructor_that_is_written() -> None:
    """`torch.nn.Module` takes nothing itself, and is called by that of a subclass."""
    text = (
        "from torch import nn\nclass B(nn.Module):\n  def __init__(self, a): ...\nclass A(B): ..."
    )

    assert _taken(text) == "(a)"


def test_an_instance_that_is_made_of_anything_has_a_constructor() -> None:
    """A `__new__` that takes all passes it on."""
    text = """
    class A:
        def __new__(cls, *args, **kwargs): ...
        def __init__(self, a): ...
    """

    assert _taken(text) == "(a)"


def test_a_decorator_of_an_engine_makes_dataclasses() -> None:
    """One that is marked so does, among others that are not."""
    text = """
    from .deco import config, noted
    @noted
    @config(title="x")
    class A:
        a: int
        b: int = Field(gt=0)
        c: int = Field(1, gt=0)
    """
    deco = """
    def noted(cls): return cls
    @dataclass_transform(field_specifiers=(field, Field))
    def config(title): ...
    """

    assert _taken(text, deco=deco) == "(a, b, c=…)"
