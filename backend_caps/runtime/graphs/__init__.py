"""Captured forwards: which are captured, for what sizes of batch, and how a batch replays one."""
