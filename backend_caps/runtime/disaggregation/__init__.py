"""Prompts that run in one engine, and are gone on with in another."""
