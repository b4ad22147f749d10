"""A third party's plugin of composites: declarations alone, over backends of other plugins."""

from __future__ import annotations

import sys
from pathlib import Path

from backend_caps import Plan, Registry, ServerFlags, discover, resolve

_DECLARATIONS = '''\
"""Composites: each names its parts, and forwards nothing by hand."""

from backend_caps import Declaration, Given, Part, Phase, Role

PAIR = Declaration(
    parts=(
        Part("torch_native", phases={Phase.PREFILL}),
        Part("torch_padded", phases={Phase.DECODE, Phase.VERIFY}),
    )
)
BY_PAGE = Declaration(
    parts=(
        Part("torch_padded", given=Given(page_size={16})),
        Part("torch_native", given=Given(page_size={1})),
    )
)
MULTI_STEP_DRAFT = Declaration(
    parts=(
        Part("torch_padded", roles={Role.DRAFT}, phases={Phase.DECODE}),
        Part("torch_native", roles={Role.DRAFT}, phases={Phase.PREFILL}),
        Part("torch_padded", roles={Role.DRAFT_EXTEND}),
    )
)
AROUND = Declaration(parts=(Part("pair"),))
CLASH = Declaration(parts=(Part("torch_native"), Part("torch_padded")))
'''
_ENTRY_POINTS = """\
[backend_caps.backends]
pair = composite_caps:PAIR
by_page = composite_caps:BY_PAGE
multi_step_draft = composite_caps:MULTI_STEP_DRAFT
around = composite_caps:AROUND
clash = composite_caps:CLASH
"""


def install(folder: Path) -> Registry:
    """Install the plugin into a folder, and find it beside those that are there."""
    (folder / "composite_caps.py").write_text(_DECLARATIONS, "utf-8")
    info = folder / "composites-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(_ENTRY_POINTS, "utf-8")
    return discover([folder, *sys.path])


def plan_of(registry: Registry, *arguments: str) -> Plan:
    """Resolve what a server's arguments ask of a registry's backends."""
    flags = ServerFlags.from_argv([*arguments, "--disable-piecewise-cuda-graph"])
    rules = registry.rules("sglang-0.5.23")
    return resolve(registry.uses(flags), flags, rules=rules, policy="quiet")
