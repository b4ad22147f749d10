"""What decorators leave of a function."""

from __future__ import annotations

from textwrap import dedent

import pytest

from backend_caps.compatibility.decorators import (
    is_of_class,
    is_property,
    is_static,
    keeps_signature,
    names_of,
)
from tests.unit.compatibility.pairs import function, function_of, pair_of

DECORATED = """
@staticmethod
@functools.lru_cache(maxsize=None)
@a.b.setter
def f(x): ...
"""


def test_decorators_have_the_last_of_their_names() -> None:
    """A decorator that is called has the name of what is called."""
    assert [*names_of(function(DECORATED))] == ["staticmethod", "lru_cache", "setter"]


KINDS = [
    pytest.param("staticmethod", [True, True, False], id="static"),
    pytest.param("classmethod", [False, True, False], id="of the class"),
    pytest.param("abc.abstractclassmethod", [False, True, False], id="of the class, abstract"),
    pytest.param("property", [False, False, True], id="a property"),
    pytest.param("functools.cached_property", [False, False, True], id="a cached one"),
    pytest.param("x.setter", [False, False, True], id="a setter"),
    pytest.param("abc.abstractmethod", [False, False, False], id="a method"),
]


@pytest.mark.parametrize(("decorator", "expected"), KINDS)
def test_a_decorator_tells_how_a_method_is_called(decorator: str, expected: list[bool]) -> None:
    """A static method gets nothing, a class method no instance, a property no call."""
    method = function(f"@{decorator}\ndef f(x): ...")

    assert [is_static(method), is_of_class(method), is_property(method)] == expected


DECORATORS = [
    pytest.param("def deco(f):\n  register(f)\n  return f", True, id="its argument"),
    pytest.param("def deco(*, f): return f", True, id="its argument by name"),
    pytest.param(
        "def deco(f):\n  def all(*args, **kwargs): return f(*args, **kwargs)\n  return all", True,
        id="what takes all",
    ),
    pytest.param(
        "def deco(f):\n  def some(x): return f(x, 1)\n  return some", False, id="what takes one",
    ),
    pytest.param(
        "def deco(f):\n  def more(*args): return f(*args)\n  return more", False,
        id="what takes no names",
    ),
    pytest.param(
        "def deco(name):\n  def inner(f): return f\n  return inner", True, id="a decorator",
    ),
    pytest.param(
        "def deco(name):\n  def inner(f): return Wrapped(f)\n  return inner", False,
        id="a decorator that returns an object",
    ),
    pytest.param(
        """
        def deco(name):
          def inner(f):
            def all(*args, **kwargs): return f(*args, **kwargs)
            return cast(F, all)
          return inner
        """, True, id="a decorator that returns what takes all",
    ),
    pytest.param(
        "def deco(f=None):\n  if f is None: return partial(deco)\n  return f", True,
        id="its argument, or itself with arguments",
    ),
    pytest.param("def deco(f): return Wrapped(f)", False, id="an object"),
    pytest.param("def deco(f): ...", False, id="nothing"),
    pytest.param("def deco(f): return other", False, id="another function"),
    pytest.param("class deco: ...", False, id="an instance"),
    pytest.param("from elsewhere import deco", False, id="what only running code knows"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), DECORATORS)
def test_a_decorator_keeps_a_signature_if_its_text_says_so(text: str, expected: bool) -> None:
    """A decorator returns its argument, or what takes any arguments."""
    pair = pair_of({}, {"m": f"{dedent(text)}\n@deco\ndef g(x): ...\n@deco('a')\ndef h(x): ..."})

    kept = [keeps_signature(pair, function_of(pair, name)) for name in ("g", "h")]

    assert kept == [expected, expected]


def test_known_decorators_keep_a_signature() -> None:
    """Those of Python and of torch are known by their names, wherever they are imported from."""
    text = "@torch.no_grad()\n@functools.wraps(f)\n@property\ndef g(x): ..."
    pair = pair_of({}, {"m": text})

    assert keeps_signature(pair, function_of(pair, "g"))


def test_every_decorator_counts() -> None:
    """One that may change the signature is enough."""
    pair = pair_of({}, {"m": "@final\n@unknown\ndef g(x): ..."})

    assert not keeps_signature(pair, function_of(pair, "g"))
