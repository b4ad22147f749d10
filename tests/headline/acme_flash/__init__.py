"""Attention that reads no length on the host."""
