"""Variants of SGLang's layers, of servers with configurations of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend_caps.kit.layer_variants import LayerVariant


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVariant(LayerVariant):
    """A kind of layer, and a server's configuration."""

    configuration: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """What differs from a plain server's, by the part of SGLang's execution settings."""
    has_window_pool: bool = False
    """Whether layers with a window have memory of their own."""


PLAIN = ServedVariant()
"""A layer without any of it, of a plain server."""
