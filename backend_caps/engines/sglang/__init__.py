"""SGLang: its source, read; and its decision for live backends, with reasons.

The names below are loaded on first use; nothing of SGLang is imported.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # that of `typing`, which would be imported first
if TYPE_CHECKING:
    from backend_caps.engines.sglang.drop_in import (
        decide_needs_cpu_seq_lens,
        explain_needs_cpu_seq_lens,
    )

__all__ = ["decide_needs_cpu_seq_lens", "explain_needs_cpu_seq_lens"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.drop_in"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
