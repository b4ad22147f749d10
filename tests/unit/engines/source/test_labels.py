from __future__ import annotations

from collections.abc import Collection

from backend_caps.engines.source.classes import labels
from tests.unit.engines.sglang.building import index_of
from tests.unit.engines.tables import table


def _labels(taken: Collection[str] = (), **texts: str) -> list[str]:
    index = index_of({f"sglang/{name}.py": text for name, text in texts.items()})
    modules = [index.module(f"sglang.{name}") for name in texts]
    definitions = [each for module in modules if module is not None for each in module.classes]
    return labels([(each.path, each) for each in definitions], taken=taken)


CHOSEN = "if HOT:\n    class A: pass\nelse:\n    class A: pass\n"


@table("source_labels", "label_is_the_shortest_that_no_other_class_has")
def test_label_is_the_shortest_that_no_other_class_has(
    texts: dict[str, str], expected: list[str]
) -> None:
    """Classes of one name are distinguished by file, condition, path, and only then by line."""
    assert sorted(_labels(**texts)) == expected


def test_label_is_no_name_that_flags_use() -> None:
    """A class that is called as a registered name is called by its file too."""
    assert _labels({"triton"}, one="class triton: pass") == ["one.triton"]


def test_class_all_whose_names_are_taken_has_one_more() -> None:
    """Whatever is registered, a class has a name."""
    every = ["A", "one.A", "sglang.one.A", "sglang.one.A at sglang/one.py:1"]

    assert _labels(every, one="class A: pass") == ["sglang.one.A at sglang/one.py:1 here"]


def test_label_stays_when_another_class_comes() -> None:
    """A new class of another name, and lines before, change no label."""
    before = _labels(one=CHOSEN)

    after = _labels(one="import os\n\nclass B: pass\n\n" + CHOSEN)

    assert sorted(after) == sorted([*before, "B"])
