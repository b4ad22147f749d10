"""Hands out the class beside its declaration."""

from backend_caps_torch_native.padded import TorchPadded

__all__ = ["TorchPadded"]
