"""How what an engine makes of a command line is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend_caps.report.launch_views import launch_view
from backend_caps.report.launches import LaunchDocument
from backend_caps.report.sections import Lines
from backend_caps.resolution.launch import Launch, LayerGroup

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
