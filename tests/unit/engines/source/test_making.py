"""What making an instance runs, and what its methods may do later."""

from __future__ import annotations

from backend_caps.engines.source.attributes import Attributes
from backend_caps.engines.source.classes import Classes
from tests.unit.engines.source.trees import class_of, index_of, stated_of
from tests.unit.engines.tables import table

BASE = """
class B:
    x = 1
    def __init__(self):
        self.x = 2
    def set(self):
        self.x = 3
"""
RUN = "x = 2; x = 3 where once set() has run"


@table("source_making", "constructor_of_a_base_runs_where_it_is_called")
def test_constructor_of_a_base_runs_where_it_is_called(init: str, words: str) -> None:
    """However a base is called, its constructor counts; where nobody knows, it may run."""
    text = f"{BASE}_B = B\nclass C: pass\n_C = C\nfrom far import Far\n"
    text += f"class A(B):\n    def __init__(self):\n        {init}\n"

    assert stated_of(text) == words


@table("source_making", "methods_may_run_later")
def test_methods_may_run_later(body: str, words: str) -> None:
    """A method that nothing certain follows may run once the instance is made."""
    assert stated_of(f"{BASE}class A(B):\n    {body}\n") == words


def test_methods_of_each_condition_count() -> None:
    """Of methods that a condition chooses from each may run; else the one of a base does."""
    text = f"""{BASE}
class A(B):
    if a:
        def __init__(self):
            self.x = 4
    elif b:
        def __init__(self):
            pass
"""
    words = stated_of(text)

    assert words == (
        "x = 1; x = 4 where a; x = 2 where not a and (not (not a and b)); "
        "x = 3 where once set() has run"
    )


def test_classes_of_one_base_are_each_read() -> None:
    """What was read of a base for one class holds for the next one."""
    index = index_of(m=f"{BASE}class A(B): pass\nclass C(B): pass\n")
    attributes = Attributes(Classes(index), ["x"])

    stated = [attributes.stated(class_of(index, name), "x") for name in ("A", "C")]

    assert [each.words for each in stated if each] == [RUN, RUN]


def test_only_the_last_of_certain_methods_counts() -> None:
    """A method that is always defined again is not there."""
    text = "class A:\n    def __init__(self): self.x = 1\n    def __init__(self): self.x = 2\n"

    assert stated_of(text) == "x = 2"


def test_method_that_only_a_dead_method_calls_is_dead() -> None:
    """What is called by a method that itself is hidden and never called is not run."""
    text = f"{BASE}class C(B):\n    def set(self): super().set()\n"
    text += "class A(C):\n    def set(self): pass\n    def other(self): super().other()\n"

    assert stated_of(text) == "x = 2"


def test_method_that_calls_two_hidden_ones_is_asked_about_once() -> None:
    """Whether a method may run is found out once, however many hidden ones it calls."""
    text = f"{BASE}    def put(self):\n        self.x = 4\n"
    text += "class A(B):\n    def set(self): pass\n    def put(self): pass\n"
    text += "    def other(self):\n        b = super()\n        b.set()\n        b.put()\n"

    words = stated_of(text)

    assert words == "x = 2; x = 3 where once set() has run; x = 4 where once put() has run"


@table("source_making", "layout_hides_no_statement")
def test_layout_hides_no_statement(target: str) -> None:
    """However a statement is laid out, it is read."""
    assert stated_of(f"class A:\n    def __init__(self):\n        {target}\n") == "x = 2"
