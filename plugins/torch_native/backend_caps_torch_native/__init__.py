"""Paged-KV attention in plain PyTorch: `TorchNative` and `TorchPadded`."""

from backend_caps_torch_native.native import MissingMirrorError, TorchNative, TreeMaskError
from backend_caps_torch_native.padded import TorchPadded

__all__ = ["MissingMirrorError", "TorchNative", "TorchPadded", "TreeMaskError"]
