"""What an attention backend needs and supports: declared once, resolved with reasons.

The names below are loaded on first use; importing the package loads no module of it. `configure`,
`Configuration` and `GraphSizes` load torch; they are for an engine, and
`from backend_caps import *` leaves them out.
"""

from __future__ import annotations

from importlib import import_module

_MODULES = {
    "capability.declaration": ("Declaration", "Part", "When"),
    "capability.facts": ("AtLeast", "Facts", "Given"),
    "capability.kind": ("ANY", "Phase", "Role", "UNDECLARED"),
    "capability.provenance": ("Origin", "Source"),
    "capability.sets": ("ComputeRange", "Conflict", "Exact", "MultipleOf", "OneOf"),
    "capability.vocabulary": (
        "AttentionArch",
        "AttentionType",
        "BatchKind",
        "Capabilities",
        "GraphMetadata",
        "HostSeqLens",
        "KVLayout",
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
__all__ = [name for name in sorted(_HOME) if not _HOME[name].startswith("startup.")]


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
