"""Declares another plugin's very object."""

from torch_native_caps import TORCH_PADDED as DECLARATION

__all__ = ["DECLARATION"]
