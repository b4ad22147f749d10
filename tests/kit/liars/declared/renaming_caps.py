"""Gives another plugin's declaration a name of its own."""

from torch_native_caps import TORCH_PADDED as DECLARATION

__all__ = ["DECLARATION"]
