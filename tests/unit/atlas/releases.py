"""Documents of releases that no engine has, for questions and pages."""

from __future__ import annotations

from itertools import product

from pydantic import JsonValue

from backend_caps.atlas.documents import (
    SCHEMA,
    AtlasConditionDocument,
    CellDocument,
    ClassDocument,
    ReleaseDocument,
    VerdictDocument,
)
from backend_caps.report.backends import PartDocument

Cells = dict[str, CellDocument]
VALUES: dict[str, list[JsonValue]] = {
    "kv_cache_dtypes": [["fp8_e4m3"], ["bfloat16"], "any", "depends", "undeclared"],
    "sliding_window": [True, False, "undeclared", "depends", True],
    "attention_arch": [["mla"], ["mha"], ["block_sparse"], "depends", ["sparse"]],
    "graph_replay": [["single_token_decode"], [], "undeclared", "depends", "any"],
    "compute_capability": [[">= 9.0"], [">= 8.0 and < 9.0"], "any", "depends", "undeclared"],
    "head_sizes": [{"exact": 80}, {"one_of": [64]}, {"multiple_of": 16}, "any", "depends"],
    "page_sizes": [{"exact": 48}, {"one_of": [48]}, {"multiple_of": 32}, "any", "depends"],
    "max_speculative_topk": [1, 4, None, "undeclared", 8],
    "host_seq_lens": ["none", "upper_bound", "exact", "depends", "undeclared"],
}
"""Values of every kind, five of each capability."""


def cell(value: JsonValue, *when: JsonValue, at: str | None = "a.py:1") -> CellDocument:
    """Make a cell, with values under conditions."""
    conditions = [
        AtlasConditionDocument(given={"expression": "x"}, words="x", value=each) for each in when
    ]
    return CellDocument(
        value=value, origin="declared", words="", declared_at=at, when=conditions or None
    )


def release(cells: Cells, root: Cells | None = None, **own: object) -> ReleaseDocument:
    """Make a release with one class `A`."""
    made = {"path": "a.A", "declared_at": "a.py:1", "registered_as": [], "cells": cells, **own}
    base = {"path": "a.Root", "declared_at": "a.py:9", "registered_as": [], "cells": root or {}}
    return ReleaseDocument(
        schema_=SCHEMA,
        distribution="vllm",
        version="1.0",
        engine="vllm",
        archive="a.whl",
        sha256="",
        reader="",
        rules=[],
        problems=[],
        root=None if root is None else ClassDocument.model_validate(base),
        names={},
        classes={"A": ClassDocument.model_validate(made)},
    )


_REFUTED = VerdictDocument(
    check="a-check", held=False, about=["sliding_window", "graph_replay"], words="a finding"
)
"""What a run found, of a capability that the class states and of one that it lacks."""


def various() -> ReleaseDocument:
    """Make a release with classes whose values are of every kind, and one that states nothing."""
    classes = {}
    for at in range(5):
        cells = {name: cell(own[at]) for name, own in VALUES.items()}
        cells["attention_sinks"] = cell(value=at % 2 == 0)
        if at == 1:
            cells["attention_sinks"] = cell(False, True)  # noqa: FBT003 - under a condition
        platforms = {"cuda": "b.py:2"} if at < 2 else {"rocm": "c.py:3"} if at == 2 else None
        verdicts = [_REFUTED] if at == 0 else None
        own = release(cells, platforms=platforms, verdicts=verdicts)
        classes[f"Class{at}"] = own.classes["A"]
    silent = release({}, {"sliding_window": cell(value=False), "dtypes": cell(["bfloat16"])})
    return silent.model_copy(update={"classes": {**classes, "Silent": silent.classes["A"]}})


def many(number: int) -> ReleaseDocument:
    """Make a release with many classes, of those of `various` by turns."""
    own = various()
    kinds = [*own.classes.values()]
    classes = {f"Class{at}Backend": kinds[at % len(kinds)] for at in range(number)}
    return own.model_copy(update={"classes": classes})


def settled() -> ReleaseDocument:
    """Make a release whose classes have settings of every kind, which servers take and refuse.

    Each setting is decided for one name or for two, alike or not. The classes themselves state
    nothing of it, that they fit, or that they do not.
    """
    classes = {}
    for at, (settings, (kind, names)) in enumerate(product(_SETTINGS, _NAMES.items())):
        decided = [_setting(name, settings, accepted=own) for name, own in names]
        decided += [_setting(name, {"non_causal": True}, accepted=True) for name, _ in names[:1]]
        classes[f"{kind.title()}{at}"] = _settled(decided, at)
    for kind, taken in _DTYPES.items():
        decided = [
            _setting(_FIRST, {"kv_cache_dtypes": each}, accepted=each == taken)
            for each in ("fp8_e4m3", "fp8_e5m2")
        ]
        classes[f"{kind.title()}Dtypes"] = _settled(decided, 0)
    known = dict[str, list[PartDocument]]({_FIRST: [], _SECOND: []})
    return release({}).model_copy(update={"classes": classes, "names": known, "tried": _TRIED})


_FIRST, _SECOND = "FLASH_ATTN", "SECOND.NAME"
_NAMES = {
    "one": [(_FIRST, True)],
    "refused": [(_FIRST, False)],
    "both": [(_FIRST, True), (_SECOND, True)],
    "neither": [(_FIRST, False), (_SECOND, False)],
    "split": [(_FIRST, True), (_SECOND, False)],
}
"""What the names of a class make of a setting."""
_DTYPES = {"neither": None, "some": "fp8_e5m2"}
"""The dtype of two that a server takes."""
_SETTINGS: list[dict[str, JsonValue]] = [
    {"kv_cache_dtypes": "fp8_e4m3"},
    {"attention_sinks": True},
    {"page_sizes": 48},
    {"max_speculative_topk": 4},
    {"attention_arch": "mla"},
    {"platform": "rocm"},
    {"compute_capability": "9.0"},
    {"attention_sinks": True, "compute_capability": "9.0"},
    {"attention_sinks": True, "platform": "rocm"},
    {"kv_cache_dtypes": "fp8_e5m2", "compute_capability": "9.0"},
    {"page_sizes": 48, "attention_arch": "mla"},
    {"max_speculative_topk": 4, "platform": "rocm"},
]
_TRIED: dict[str, list[JsonValue]] = {
    "kv_cache_dtypes": ["fp8_e4m3", "fp8_e5m2", "nvfp4"],
    "attention_sinks": [True],
    "page_sizes": [16, 48],
    "max_speculative_topk": [1, 4, 8],
}


def _setting(name: str, settings: dict[str, JsonValue], *, accepted: bool) -> dict[str, object]:
    own = {"words": f"{name} {accepted}", "declared_at": "s.py:4", "followed_on": "H100"}
    return {"name": name, "settings": settings, "accepted": accepted, **own}


def _settled(decided: list[dict[str, object]], at: int) -> ClassDocument:
    """Make a class that states nothing, that it fits, or that it does not."""
    stated: list[Cells] = [
        {},
        {"attention_sinks": cell(value=True), "page_sizes": cell("any")},
        {"attention_sinks": cell(value=False), "kv_cache_dtypes": cell(["bfloat16"])},
    ]
    names = sorted({str(each["name"]) for each in decided})
    own = release(stated[at % 3], settings=decided, registered_as=names)
    return own.classes["A"]
