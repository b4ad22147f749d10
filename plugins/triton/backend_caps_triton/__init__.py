"""Paged-KV attention in Triton: `TritonAttention`."""

from backend_caps_triton.backend import TritonAttention
from backend_caps_triton.errors import NoCompilerError

__all__ = ["NoCompilerError", "TritonAttention"]
