"""Paged-KV attention by torch's `flex_attention`: `FlexAttention`."""

from backend_caps_flex_attention.flex import FlexAttention
from backend_caps_flex_attention.kernels import Mode

__all__ = ["FlexAttention", "Mode"]
