"""The attention backend `my_attention`."""

from my_attention.backend import MyAttentionBackend

__all__ = ["MyAttentionBackend"]
