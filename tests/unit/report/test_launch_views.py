"""How what an engine makes of a command line is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.report.launch_views import launch_view
from backend_caps.report.launches import LaunchDocument
from backend_caps.report.sections import Lines, Table
from backend_caps.resolution.launch import CacheGroup, Launch, LayerGroup

_GROUP = LayerGroup(
    role="target",
    layer="Attention",
    num_layers=3,
    backend="FLASH_ATTN",
    path="vllm.Flash",
    graph_support="ALWAYS",
    cache="FullAttentionSpec",
    sizes={},
)


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        pytest.param({}, ("async scheduling: not known", "no speculation"), id="not known"),
        pytest.param(
            {
                "disable_overlap_schedule": True,
                "enable_two_batch_overlap": True,
                "speculative_algorithm": "eagle3",
                "speculative_num_steps": 3,
            },
            ("async scheduling: off", "speculation: eagle3, 3 tokens", "dual batch overlap: on"),
            id="known",
        ),
    ],
)
def test_scheduling_is_shown_in_lines(flags: dict[str, object], lines: tuple[str, ...]) -> None:
    """Overlap, speculation and dual batch overlap stand behind the layers."""
    launch = Launch(engine="vllm-9.0", machine="H100", model="m", layers=(_GROUP,), flags=flags)

    sections = [*launch_view(LaunchDocument.of(launch))]

    assert [each.lines for each in sections if isinstance(each, Lines)][-1] == lines


@pytest.mark.parametrize(
    ("facts", "asks"),
    [
        pytest.param({}, (), id="not known"),
        pytest.param(
            {
                "head_size": 64,
                "sliding_window": True,
                "attention_sinks": False,
                "attention_arch": "mha",
                "attention_type": "decoder",
            },
            (),
            id="as most layers, with a window",
        ),
        pytest.param(
            {
                "attention_arch": "sparse",
                "attention_type": "encoder_decoder",
                "attention_sinks": True,
            },
            ("6 Attention layers of the target ask sparse, encoder_decoder, attention_sinks",),
            id="special",
        ),
    ],
)
def test_what_is_special_of_layers_stands_below_them(
    facts: dict[str, object], asks: tuple[str, ...]
) -> None:
    """Those that ask the same are one line; a window is in the table."""
    layers = (_GROUP, *[replace(_GROUP, facts=facts)] * 2)
    launch = Launch(engine="vllm-9.0", machine="H100", model="m", layers=layers)

    sections = [*launch_view(LaunchDocument.of(launch))]

    lines = [line for each in sections if isinstance(each, Lines) for line in each.lines]
    assert tuple(line for line in lines if " ask " in line) == asks


def _tables(launch: Launch) -> list[list[tuple[str, ...]]]:
    sections = launch_view(LaunchDocument.of(launch))
    return [[*map(tuple, each.rows)] for each in sections if isinstance(each, Table)]


def test_layers_that_differ_in_what_they_ask_alone_are_one_row() -> None:
    """What they ask stands in lines below."""
    asking = replace(_GROUP, num_layers=1, facts={"attention_sinks": True})
    launch = Launch(engine="vllm-9.0", machine="H100", model="m", layers=(asking, _GROUP))

    assert [row[0] for row in _tables(launch)[0]] == ["4 Attention"]


_CACHE = CacheGroup(
    cache="FullAttentionSpec",
    num_layers=3,
    block_size=64,
    kernel_block_size=64,
    backends=["FLASH_ATTN"],
)
_WINDOW = replace(_CACHE, cache="SlidingWindowSpec")


@pytest.mark.parametrize(
    ("caches", "rows"),
    [
        pytest.param((), None, id="none"),
        pytest.param((_CACHE, _WINDOW), None, id="the kinds of layers"),
        pytest.param(
            (_CACHE, _WINDOW, _WINDOW),
            [("1", "FullAttentionSpec", "64"), ("2", "SlidingWindowSpec", "64")],
            id="several of a kind",
        ),
        pytest.param(
            (replace(_CACHE, kernel_block_size=16),),
            [("1", "FullAttentionSpec", "16")],
            id="smaller blocks in kernels",
        ),
        pytest.param(
            (replace(_CACHE, backends=["A", "B"]),),
            [("1", "FullAttentionSpec", "64")],
            id="several backends",
        ),
    ],
)
def test_groups_of_the_cache_are_shown_where_they_are_more_than_kinds_of_layers(
    caches: tuple[CacheGroup, ...], rows: list[tuple[str, ...]] | None
) -> None:
    """Each kind of group once, with the number of them."""
    launch = Launch(engine="vllm-9.0", machine="H100", model="m", layers=(_GROUP,), caches=caches)

    found = [[(row[0], row[2], row[4]) for row in table] for table in _tables(launch)[1:]]

    assert found == ([] if rows is None else [rows])
