"""Copies another plugin's declaration, and with it claims that it does not state."""

from __future__ import annotations

from torch_native_caps import TORCH_PADDED

_OWN = TORCH_PADDED.capabilities.model_copy(update={"auto_priority": 5})
DECLARATION = TORCH_PADDED.model_copy(update={"capabilities": _OWN})
