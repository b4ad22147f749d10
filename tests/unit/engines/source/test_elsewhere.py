"""Where a name is set by anything but a statement on `self`."""

from __future__ import annotations

from cProfile import Profile
from pstats import Stats

import pytest

from tests.unit.engines.source.trees import stated_of

CLASS = "class A:\n    x = 1\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("    def f(self):\n        def g():\n            self.x = 2", 5, id="inner"),
        pytest.param("    def __init__(this):\n        this.x = 2", 4, id="another self"),
        pytest.param("    def f(self):\n        me = self\n        me.x = 2", 5, id="an alias"),
        pytest.param("    def f(self):\n        type(self).x = 2", 4, id="the class of self"),
        pytest.param("    def f(self):\n        setattr(self, 'x', 2)", 4, id="setattr"),
        pytest.param("    def f(self):\n        self.__dict__['x'] = 2", 4, id="dict"),
        pytest.param("    def f(self):\n        self.__dict__.update(x=2)", 4, id="a keyword"),
        pytest.param("    def f(self):\n        vars(self).update({'x': 2})", 4, id="update"),
        pytest.param("    def f(self):\n        for self.x in y: pass", 4, id="a loop"),
        pytest.param("    def f(self):\n        with a as self.x: pass", 4, id="a with"),
        pytest.param("    def f(self):\n        del self.x", 4, id="del"),
        pytest.param("    del x", 3, id="del in the class"),
        pytest.param("    for x in y: pass", 3, id="a loop in the class"),
        pytest.param("    f = lambda self: setattr(self, 'x', 2)", 3, id="a lambda"),
        pytest.param("    @p.setter\n    def p(self, v):\n        self.x = v", 5, id="a setter"),
        pytest.param(
            "    @f.register\n    def _(self):\n        self.x = 2\n"
            "    @f.register\n    def _(self): pass",
            5,
            id="a method that is given away",
        ),
        pytest.param("    def __init_subclass__(cls):\n        cls.x = 2", 4, id="a subclass"),
        pytest.param("A.x = 2", 3, id="the module"),
        pytest.param("if a:\n    A.x += 2", 4, id="the module by a condition"),
        pytest.param("try: pass\nexcept E:\n    A.y.x = 2", 5, id="deeper"),
        pytest.param("def make():\n    a = A()\n    a.x = 2", 5, id="a factory"),
        pytest.param("def f(cls):\n    cls.x = 2\n    return cls", 4, id="a decorator"),
        pytest.param("def f(a):\n    f(a)[0].x = 2", 4, id="no name"),
        pytest.param("setattr(A, 'x', 2)", 3, id="setattr of the module"),
    ],
)
def test_what_is_set_elsewhere_may_be_true(text: str, line: int) -> None:
    """A name that anything else sets is open: it may be true."""
    words = stated_of(f"{CLASS}{text}\n")

    assert words == f"x = 1; x = True where it is set elsewhere (engine/m.py:{line})"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("    def f(self):\n        return self.x or b.x", id="read"),
        pytest.param("    def f(self):\n        self.x == 1; getattr(self, 'x')", id="asked for"),
        pytest.param("    def f(self):\n        b.z = self.x; b[self.x] = 1", id="given to others"),
        pytest.param("    def f(self):\n        self.x: int", id="an annotation"),
        pytest.param("    def f(self, x):\n        x = f(x=x)", id="a local name"),
        pytest.param("    z = dict(x=1)", id="a keyword of another call"),
        pytest.param("class B:\n    def f(self):\n        b.x = 1", id="another class"),
        pytest.param("class B: pass\nB.x = 2", id="an attribute of another class"),
        pytest.param("def f():\n    x = 1\nx = 2", id="a name of the module"),
        pytest.param("if a:\n    pass\nelif x:\n    pass", id="a condition"),
        pytest.param("if False:\n    class B:\n        x = 1\n        del x", id="never"),
    ],
)
def test_what_sets_nothing_of_the_class_is_left_out(text: str) -> None:
    """Reads, and what is set of others, leave a class as it is."""
    assert stated_of(f"{CLASS}{text}\n") == "x = 1"


def test_what_sets_a_base_elsewhere_counts_below_it() -> None:
    """A class has what the file of its base does to the base."""
    base = "class B:\n    x = 1\nclass C: pass\nB.x = 2\nC.x = 2\n"

    words = stated_of("from .n import B\nclass A(B): pass\n", n=base)

    assert words == "x = 1; x = True where it is set elsewhere (engine/n.py:4)"


def test_each_file_says_once_that_it_sets_a_class() -> None:
    """Of several places that set the same of a class the first is told."""
    words = stated_of(f"{CLASS}a.x = 2\nb.x = 2\nA.x = 2\nA.x = 3\n")

    assert words == (
        "x = 1; x = True where it is set elsewhere (engine/m.py:5); "
        "x = True where it is set elsewhere (engine/m.py:3)"
    )


@pytest.mark.parametrize("row", ["self.x;", "self.x\n        ", "self.x = 1;", "a.x = 1;"])
def test_calls_grow_with_the_text_and_no_faster(row: str) -> None:
    """A text that has the name everywhere is read once: calls grow as the text does."""
    small, large = (_calls_for(row, count) for count in (200, 800))

    assert large / small < 4.4


def _calls_for(row: str, count: int) -> int:
    """Count the calls that read a class of so many rows."""
    text = f"{CLASS}    def __init__(self):\n        {row * count}\n"
    with Profile() as profile:
        words = stated_of(text)
    assert words.startswith("x = 1")
    return Stats(profile).total_calls  # type: ignore[attr-defined]
