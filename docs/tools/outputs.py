"""Files that a program writes: which of them are not what it would write now."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RENEW = "make docs-write"
Files = Mapping[Path, Callable[[], str]]
"""What writes each."""


def stale(files: Files) -> list[Path]:
    """List the files that are missing or hold another text."""
    return [
        path
        for path, text in files.items()
        if not path.exists() or path.read_text("utf-8") != text()
    ]


def main(files: Files, arguments: Sequence[str]) -> int:
    """Write the files, or tell which are stale; the status of the process."""
    found = stale(files)
    for path in found:
        if "--write" in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path](), "utf-8")
        else:
            sys.stdout.write(f"{path.relative_to(ROOT)} is stale; renew it: {RENEW}\n")
    return 1 if found and "--write" not in arguments else 0
