"""How what an engine makes of a command line is shown."""

from __future__ import annotations

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
