"""The examples that the help of a command ends with."""

from __future__ import annotations

from textwrap import indent


def examples(*commands: str) -> str:
    """Write command lines as an epilog, which click folds nowhere.

    Args:
        commands: as they are typed; a long one goes on after a backslash at its line's end.
    """
    lines = "\n".join(indent(command, "  ") for command in commands)
    return f"\b\nExamples:\n{lines}"
