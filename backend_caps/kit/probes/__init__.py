"""Probes of checks: graph replays, host lengths and waits, stories, server traces, imports.

A probe runs a backend in some way, or watches a run, and returns its observations. The check
decides which claim they break.
"""
