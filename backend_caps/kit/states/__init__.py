"""Layers that keep states in place of a KV cache: recurrences, stories of requests, and checks."""
