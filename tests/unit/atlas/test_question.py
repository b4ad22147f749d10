"""Questions in words: what they ask, and what small classes answer."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import JsonValue

from backend_caps.atlas.question import Answer, asked_in, patterns, replies, verdict
from backend_caps.report.backends import PartDocument
from tests.unit.atlas.releases import Cells, cell, release


def answer(question: str, cells: Cells, root: Cells | None = None, **own: object) -> Answer:
    """Return the answer of one class."""
    return verdict(replies(release(cells, root, **own), "A", asked_in(question)))


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        (
            "fp8 KV, sliding window, MLA, full graphs, on B200",
            {
                "kv_cache_dtypes": ["fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"],
                "sliding_window": True,
                "attention_arch": ["mla"],
                "graph_replay": ["single_token_decode"],
                "compute_capability": "10.0",
            },
        ),
        ("Sparse MLA", {"attention_arch": ["sparse"]}),
        ("head size 80", {"head_sizes": 80}),
        ("a page_size=64", {"page_sizes": 64}),
        ("sm90", {"compute_capability": "9.0"}),
        ("sm_120", {"compute_capability": "12.0"}),
        ("compute capability 8.9", {"compute_capability": "8.9"}),
        ("RTX 5090", {"compute_capability": "12.0"}),
        ("CUDA graphs for verify", {"graph_replay": ["single_token_decode", "uniform_batch"]}),
        ("on AMD, topk 4", {"max_speculative_topk": 4, "platform": "rocm"}),
        ("without host syncs", {"host_seq_lens": "upper_bound"}),
        ("sinks and sinks", {"attention_sinks": True}),
        ("what is it", {}),
    ],
)
def test_question_asks(question: str, asked: dict[str, JsonValue]) -> None:
    """Each piece of the words asks of one capability."""
    assert {each.capability: each.value for each in asked_in(question)} == asked


@pytest.mark.parametrize(
    ("question", "capability", "value", "expected"),
    [
        ("fp8 kv", "kv_cache_dtypes", ["bfloat16", "fp8_e4m3"], Answer.YES),
        ("fp8 kv", "kv_cache_dtypes", ["bfloat16"], Answer.NO),
        ("fp8 kv", "kv_cache_dtypes", "any", Answer.YES),
        ("fp8 kv", "kv_cache_dtypes", "depends", Answer.OPEN),
        ("full graphs", "graph_replay", ["single_token_decode"], Answer.YES),
        ("full graphs", "graph_replay", [], Answer.NO),
        ("full graphs", "graph_replay", "undeclared", Answer.NO),
        ("sinks", "attention_sinks", "undeclared", Answer.OPEN),
        ("sinks", "attention_sinks", True, Answer.YES),
        ("head size 80", "head_sizes", {"exact": 80}, Answer.YES),
        ("head size 80", "head_sizes", {"one_of": [64, 128]}, Answer.NO),
        ("page size 48", "page_sizes", {"multiple_of": 16}, Answer.YES),
        ("page size 48", "page_sizes", {"unchecked": "any"}, Answer.OPEN),
        ("topk 4", "max_speculative_topk", 1, Answer.NO),
        ("topk 4", "max_speculative_topk", None, Answer.YES),
        ("no host sync", "host_seq_lens", "none", Answer.YES),
        ("no host sync", "host_seq_lens", "exact", Answer.NO),
        ("hopper", "compute_capability", [">= 8.0 and < 9.0"], Answer.NO),
    ],
)
def test_value_answers(question: str, capability: str, value: JsonValue, expected: Answer) -> None:
    """A value fits, does not, or leaves it open."""
    assert answer(question, {capability: cell(value)}) is expected


@pytest.mark.parametrize(
    ("platforms", "expected"),
    [({"cuda": "a.py:3"}, Answer.YES), ({"rocm": "a.py:3"}, Answer.OPEN), (None, Answer.OPEN)],
)
def test_gpu_fits_where_the_platform_names_the_class(
    platforms: dict[str, str] | None, expected: Answer
) -> None:
    """A backend for other hardware refuses no compute capability either."""
    cells = {"compute_capability": cell([">= 9.0"])}

    assert answer("H100", cells, platforms=platforms) is expected


def test_platform_is_answered_by_the_engines_own_code() -> None:
    """A class that a platform does not name may still be asked for by a flag."""
    named = release({}, platforms={"rocm": "rocm.py:7"})
    (yes,) = replies(named, "A", asked_in("on ROCm"))
    (maybe,) = replies(named, "A", asked_in("on an Intel GPU"))

    assert (yes.answer, yes.at, yes.value) == (Answer.YES, "rocm.py:7", "chosen on rocm")
    assert (maybe.answer, maybe.at) == (Answer.OPEN, None)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, True], Answer.YES),
        ([False, False], Answer.NO),
        ([True, False], Answer.OPEN),
        (["depends", True], Answer.OPEN),
        (["undeclared", True], Answer.OPEN),
    ],
)
def test_conditions_count_both_ways(values: list[JsonValue], expected: Answer) -> None:
    """It fits only where every value does, and does not where none does."""
    assert answer("sinks", {"attention_sinks": cell(*values)}) is expected


def test_silent_class_has_the_values_of_the_root() -> None:
    """The reply names the root and its line; without one, it is open."""
    root = {"attention_sinks": cell(value=False, at="a.py:12")}
    for cells in ({}, {"attention_sinks": cell("undeclared", at=None)}):
        (reply,) = replies(release(cells, root), "A", asked_in("sinks"))
        assert (reply.answer, reply.at, reply.stated_by) == (Answer.NO, "a.py:12", "Root")

    (reply,) = replies(release({}), "A", asked_in("sinks"))
    assert (reply.answer, reply.value) == (Answer.OPEN, "not stated")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([["target"], ["draft_extend"]], Answer.YES, id="one name has all roles"),
        pytest.param([None], Answer.YES, id="a class of all roles"),
        pytest.param([["target"]], Answer.NO, id="no class extends drafts"),
    ],
)
def test_name_serves_the_roles_of_its_classes(
    others: list[list[str] | None], expected: Answer
) -> None:
    """A container of draft steps stands beside the class of the served model."""
    parts = [PartDocument(name="B", roles=each) for each in others]
    one = release({"roles": cell(["draft"])})
    own = one.model_copy(update={"names": {"a": [PartDocument(name="A", roles=["draft"]), *parts]}})

    assert verdict(replies(own, "A", asked_in("EAGLE"))) is expected


def test_worst_answer_decides() -> None:
    """One thing that does not fit is enough; nothing asked leaves it open."""
    cells = {"attention_sinks": cell(value=True), "sliding_window": cell(value=False)}

    assert answer("sinks", cells) is Answer.YES
    assert answer("sinks, fp8 kv", cells) is Answer.OPEN
    assert answer("sinks, fp8 kv, sliding window", cells) is Answer.NO
    assert answer("hello", cells) is Answer.OPEN


def test_patterns_are_read_by_a_browser_too() -> None:
    """They use nothing that Python and JavaScript read differently."""
    for row in patterns():
        re.compile(row["pattern"])
        assert not re.search(r"\(\?P|\(\?<|\(\?i|\\A|\\Z", row["pattern"]), row
    assert json.loads(json.dumps(patterns())) == patterns()
