"""Paged-KV attention in Triton: `TritonAttention`."""

from backend_caps_triton.backend import TritonAttention

__all__ = ["TritonAttention"]
