"""What a liar keeps in a module that is not its own."""

from __future__ import annotations

KEPT: list[tuple[object, ...]] = []
"""Something for each step."""
