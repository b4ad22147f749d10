"""Attention backends of SGLang and vLLM, read from source without importing it."""
