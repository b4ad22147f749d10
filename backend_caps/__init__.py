"""What an attention backend needs and supports: declared once, resolved with reasons.

The names below are loaded on first use; importing the package loads no module of it. `configure`,
`Configuration` and `GraphSizes` load torch; they are for an engine, and
`from backend_caps import *` leaves them out.
"""

from __future__ import annotations

from importlib import import_module

__version__: str
"""The installed version of backend-caps."""
TYPE_CHECKING = False  # that of `typing`, which would be imported before `__main__` runs
if TYPE_CHECKING:
    from backend_caps.capability.declaration import Declaration, Part, When
    from backend_caps.capability.facts import AtLeast, Facts, Given
    from backend_caps.capability.kind import ANY, UNDECLARED, Phase, Role
    from backend_caps.capability.provenance import Origin, Source
    from backend_caps.capability.sets import ComputeRange, Conflict, Exact, MultipleOf, OneOf
    from backend_caps.capability.vocabulary import (
        AttentionArch,
        BatchKind,
        Capabilities,
        GraphMetadata,
        HostSeqLens,
        SharedReadsEnd,
    )
    from backend_caps.discovery.evidence import require_evidence
    from backend_caps.discovery.registry import Registry, discover
    from backend_caps.errors import BackendCapsError
    from backend_caps.resolution.flags import ServerFlags
    from backend_caps.resolution.flips import Flip, flips
    from backend_caps.resolution.plan import Cause, Plan, Policy
    from backend_caps.resolution.resolver import resolve
    from backend_caps.resolution.rules import Rule, RuleSet
    from backend_caps.resolution.selection import Selection, select
    from backend_caps.resolution.uses import Use
    from backend_caps.settings.settings import Settings
    from backend_caps.startup.configuration import Configuration as Configuration
    from backend_caps.startup.configure import configure as configure
    from backend_caps.startup.graph_choice import GraphSizes as GraphSizes

__all__ = [
    "ANY",
    "UNDECLARED",
    "AtLeast",
    "AttentionArch",
    "BackendCapsError",
    "BatchKind",
    "Capabilities",
    "Cause",
    "ComputeRange",
    "Conflict",
    "Declaration",
    "Exact",
    "Facts",
    "Flip",
    "Given",
    "GraphMetadata",
    "HostSeqLens",
    "MultipleOf",
    "OneOf",
    "Origin",
    "Part",
    "Phase",
    "Plan",
    "Policy",
    "Registry",
    "Role",
    "Rule",
    "RuleSet",
    "Selection",
    "ServerFlags",
    "Settings",
    "SharedReadsEnd",
    "Source",
    "Use",
    "When",
    "discover",
    "flips",
    "require_evidence",
    "resolve",
    "select",
]

_MODULES = {
    "capability.declaration": ("Declaration", "Part", "When"),
    "capability.facts": ("AtLeast", "Facts", "Given"),
    "capability.kind": ("ANY", "Phase", "Role", "UNDECLARED"),
    "capability.provenance": ("Origin", "Source"),
    "capability.sets": ("ComputeRange", "Conflict", "Exact", "MultipleOf", "OneOf"),
    "capability.vocabulary": (
        "AttentionArch",
        "BatchKind",
        "Capabilities",
        "GraphMetadata",
        "HostSeqLens",
        "SharedReadsEnd",
    ),
    "discovery.evidence": ("require_evidence",),
    "discovery.registry": ("Registry", "discover"),
    "errors": ("BackendCapsError",),
    "resolution.flags": ("ServerFlags",),
    "resolution.flips": ("Flip", "flips"),
    "resolution.plan": ("Cause", "Plan", "Policy"),
    "resolution.resolver": ("resolve",),
    "resolution.rules": ("Rule", "RuleSet"),
    "resolution.selection": ("Selection", "select"),
    "resolution.uses": ("Use",),
    "settings.settings": ("Settings",),
    "startup.configuration": ("Configuration",),
    "startup.graph_choice": ("GraphSizes",),
    "startup.configure": ("configure",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("backend-caps")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_HOME)
