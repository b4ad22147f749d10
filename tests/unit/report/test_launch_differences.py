"""What two versions of an engine make of the same command line, side by side."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from backend_caps.report.launch_differences import of_launches
from backend_caps.report.launches import LaunchDocument
from backend_caps.resolution.launch import GraphMode, Launch, LayerGroup, Refusal, Unchecked

_REFUSAL = Refusal(message="no such backend", at="vllm/a.py:3")
_UNCHECKED = Unchecked(message="it may be missing", at="vllm/b.py:4", unless="find_spec('x')")


def _group(backend: str, role: str = "target", **sizes: object) -> LayerGroup:
    return LayerGroup(
        role=role,
        layer="Attention",
        num_layers=3,
        backend=backend,
        path=f"vllm.{backend}",
        graph_support="ALWAYS",
        cache="FullAttentionSpec",
        sizes=sizes,
    )


def _launch(
    *layers: LayerGroup,
    refusal: Refusal | None = None,
    unchecked: tuple[Unchecked, ...] = (),
    mode: str | None = None,
    flags: Mapping[str, object] | None = None,
    classes: Mapping[str, tuple[str, ...]] | None = None,
) -> LaunchDocument:
    graphs = (
        GraphMode(asked="FULL", mode=mode, support="ALWAYS", by=None, words=()) if mode else None
    )
    launch = Launch(
        engine="vllm-0.33.0",
        machine="H100",
        model="m",
        layers=layers,
        refusal=refusal,
        unchecked=unchecked,
        graphs=graphs,
        flags=flags or {},
        classes=classes or {},
    )
    return LaunchDocument.of(launch)


_STARTS = _launch()
_REFUSES = _launch(refusal=_REFUSAL)
_MAY = _launch(unchecked=(_UNCHECKED,))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        pytest.param(_STARTS, _launch(), [], id="the same"),
        pytest.param(
            _STARTS,
            _REFUSES,
            [("stricter", "starts", "starts", "refuses: no such backend", "vllm/a.py:3")],
            id="refused now",
        ),
        pytest.param(
            _REFUSES,
            _MAY,
            [("looser", "starts", "refuses: no such backend", "may refuse", None)],
            id="may start now",
        ),
        pytest.param(
            _launch(_group("FLASH_ATTN", head_size=64), _group("FLASH_ATTN", "draft")),
            _launch(
                _group("TRITON_ATTN", head_size=64, sliding_window=128), _group("FLEX", "draft")
            ),
            [
                ("other-choice", "draft Attention", "FLASH_ATTN", "FLEX", None),
                ("other-choice", "target Attention head 64", "FLASH_ATTN", None, None),
                ("other-choice", "target Attention head 64 window 128", None, "TRITON_ATTN", None),
            ],
            id="other backends",
        ),
        pytest.param(
            _launch(_group("FLASH_ATTN")),
            _MAY,
            [("stricter", "starts", "starts", "may refuse", None)],
            id="not followed",
        ),
        pytest.param(
            _launch(classes={"decode": ("a.One", "a.Two")}),
            _launch(classes={"decode": ("a.Two",)}),
            [("other-choice", "decode", "a.One, a.Two", "a.Two", None)],
            id="other classes",
        ),
        pytest.param(
            _launch(mode="FULL_AND_PIECEWISE"),
            _launch(mode="PIECEWISE"),
            [("stricter", "graphs", "FULL_AND_PIECEWISE", "PIECEWISE", None)],
            id="less graphs",
        ),
        pytest.param(
            _launch(mode="NONE"),
            _launch(mode="FULL"),
            [("looser", "graphs", "NONE", "FULL", None)],
            id="more graphs",
        ),
        pytest.param(
            _launch(mode="NONE"),
            _launch(mode="SOME"),
            [("changed", "graphs", "NONE", "SOME", None)],
            id="a new mode",
        ),
        pytest.param(
            _launch(flags={"page_size": 16}),
            _launch(flags={"page_size": 32, "tp_size": 2}),
            [
                ("changed", "flag page_size", "16", "32", None),
                ("changed", "flag tp_size", None, "2", None),
            ],
            id="other flags",
        ),
    ],
)
def test_launches_are_compared(
    before: LaunchDocument, after: LaunchDocument, found: list[tuple[str | None, ...]]
) -> None:
    """What a version takes, replays, sets and refuses in place of another one."""
    differences = [
        (each.kind.value, each.field, each.before, each.after, each.where.after)
        for each in of_launches(before, after)
    ]

    assert differences == found
