"""Paged-KV attention by FlashInfer: `FlashInfer`."""

from backend_caps_flashinfer.backend import FlashInfer
from backend_caps_flashinfer.errors import (
    CacheDtypeError,
    MissingFlashInferError,
    MissingMirrorError,
)

__all__ = ["CacheDtypeError", "FlashInfer", "MissingFlashInferError", "MissingMirrorError"]
